# export PATH=$PWD/bin:$PATH
coracle start --node-name laptop
# coracle image load dist/images/*.tar
coracle ctl apply -f manifests/examples/hello.yaml
# coracle ctl rollout status deployment/hello
coracle ctl get pods
curl -s http://$(coracle ctl get service hello -o 'jsonpath={.spec.clusterIP}')
coracle run greet --image busybox:1.36 --wait -- echo "hello from a task"
# coracle ctl apply -f manifests/examples/workers/calculator.yaml; coracle ctl wait worker/calculator --for=condition=Ready
coracle send service/calculator '{"operation": "sum", "operands": [1, 2, 3]}' --wait
coracle status
coracle delete
