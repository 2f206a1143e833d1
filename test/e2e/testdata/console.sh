# The commands of the manual's `console` blocks, in an order in which one cluster, a second one and a second machine can
# run them. TestConsoleBlocks (hack/nightly.sh console) replaces the placeholders (SERVER, NODE, /etc/coracle ...) and
# runs this; TestConsoleBlocksAreInTheScript checks that no command of a page is missing.
set -euo pipefail

step() { echo "== $* at $SECONDS s"; }

# running starts a program (not a function: ends would only end its shell) that stays in the foreground, and returns
# when its log has a line with the text. It sets pid.
running() {
  local wait=$1 log fd line
  shift
  log=$(mktemp -u)
  mkfifo "$log"
  "$@" >"$log" 2>&1 &
  pid=$!
  pids+=("$pid")
  exec {fd}<"$log"
  while read -t 60 -r line <&"$fd"; do
    echo "$line"
    if [[ $line == *$wait* ]]; then
      cat <&"$fd" &
      return
    fi
  done
  echo "$* does not say $wait" >&2
  exit 1
}
ends() { kill "$1"; wait "$1" || true; }
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT

# The pages name programs that need not be here.
sudo() { "$@"; }
kubectl() { coracle ctl "$@"; }
docker() { # save IMAGE, perhaps to a file
  local out=/dev/stdout
  if [ "${3:-}" = -o ]; then out=$4; fi
  cat "$root/dist/images/busybox.tar" >"$out"
}
# second runs a command for the second cluster.
second() { CORACLE_DATA_DIR=/srv/second CORACLE_RUN_DIR=/run/second KUBECONFIG=/srv/second/kubeconfig "$@"; }

step a first cluster
coracle start
coracle image load dist/images/*.tar
coracle ctl apply -f manifests/examples/hello.yaml
coracle ctl rollout status deployment/hello
root=$PWD
cd "$(mktemp -d)"

step images
docker save shop:1 | coracle image load -
docker save shop:ci | coracle image load -
docker save shop:ci -o shop.tar && sudo coracle image load shop.tar
coracle image pull registry.example.com/shop:1
coracle image ls | grep registry.example.com/shop

step deploy, and take the machine out
mkdir -p ~/.kube && sudo cat /var/lib/coracle/kubeconfig > ~/.kube/config
mkdir deploy
sed 's/: hello$/: shop/' "$root/manifests/examples/hello.yaml" >deploy/shop.yaml
kubectl apply -f deploy/ && kubectl wait deployment/shop --for=condition=Available
coracle ctl drain NODE --ignore-daemonsets --delete-emptydir-data
[ -z "$(coracle ctl get pods -o name --field-selector spec.nodeName=NODE)" ]
coracle stop
coracle start
coracle ctl uncordon NODE
kubectl wait deployment/shop --for=condition=Available
sudo coracle support-bundle -o logs.tar.gz
sudo coracle ctl cluster-info dump -A --output-directory=logs
tar tzf logs.tar.gz >/dev/null

step certificates
coracle certs rotate --service-account
coracle certs rotate --ca
coracle certs rotate --ca --finish

step static pods
coracle ctl run proxy --image=coracle/hello --image-pull-policy=IfNotPresent --dry-run=client -o yaml >proxy.yaml
mkdir -p /var/lib/coracle/agent/pod-manifests/
cp proxy.yaml /var/lib/coracle/agent/pod-manifests/
coracle ctl wait pod/proxy-NODE --for=create --timeout=60s
coracle ctl wait pod/proxy-NODE --for=condition=Ready --timeout=60s
rm /var/lib/coracle/agent/pod-manifests/proxy.yaml
coracle ctl wait pod/proxy-NODE --for=delete --timeout=60s

step snapshots
coracle snapshot save cluster.snapshot
mkdir -p /var/lib/coracle/snapshots # as if the server had taken it by itself
cp cluster.snapshot /var/lib/coracle/snapshots/20261127-060000-7.snapshot
coracle ctl create configmap mistake
coracle stop
coracle snapshot restore --replace
coracle start
[ -z "$(coracle ctl get configmap mistake --ignore-not-found -o name)" ]
coracle delete
coracle snapshot restore cluster.snapshot
coracle start
coracle image load images/*.tar
coracle ctl get nodes,pods -A
coracle ctl wait deployment/hello --for=condition=Available --timeout=60s

step secrets
coracle ctl create secret generic old --from-literal=a=b
coracle stop
coracle start --secrets-encryption
coracle secrets-encrypt reencrypt
coracle secrets-encrypt status
coracle secrets-encrypt rotate-keys
[ "$(coracle ctl get secret old -o 'jsonpath={.data.a}')" = Yg== ]

step messages in order
sed 's/name: reverse/name: orders/' "$root/manifests/examples/workers/shell.yaml" | coracle ctl apply -f -
coracle send service/orders '{"order": 17, "status": "paid"}' --key order-17
coracle send service/orders '{"order": 17, "status": "shipped"}' --key order-17
coracle ctl delete worker orders

step REST
coracle stop
mkdir -p /etc/coracle
openssl rand -hex 32 > /etc/coracle/rest.token
coracle start --rest-address :8070 --rest-token-file /etc/coracle/rest.token
TOKEN=$(cat /etc/coracle/rest.token)
curl --cacert /var/lib/coracle/pki/server-ca.crt -H "Authorization: Bearer $TOKEN" https://SERVER:8070/api/v1/tasks
coracle stop

step audit
printf '%s\n' 'apiVersion: audit.k8s.io/v1' 'kind: Policy' 'rules: [{level: Metadata}]' >/etc/coracle/audit.yaml
coracle start --audit-policy-file /etc/coracle/audit.yaml --audit-log-path /var/log/coracle-audit.log
coracle ctl create configmap audited
coracle stop
grep -q '"name":"audited"' /var/log/coracle-audit.log

step parts
cp /var/lib/coracle/kubeconfig admin.conf
running msg=running coracle server --no-node
ends $pid
running msg=running coracle server --disable controllers,scheduler
server=$pid
running "became leader" coracle scheduler --kubeconfig admin.conf
scheduler=$pid
running "became leader" coracle controllers --kubeconfig admin.conf --only job
controllers=$pid
coracle ctl create job parts --image=busybox:1.36 -- true
coracle ctl wait job/parts --for=condition=Complete --timeout=60s
running "became leader" coracle operator kontrol --kubeconfig admin.conf
ends $pid
ends $controllers
ends $scheduler
ends $server

step a second cluster
coracle start
coracle ctl apply -f - <<EOF
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  names: {kind: Boat, plural: boats}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: all}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [boats]}]
  validations: [{expression: "true"}]
EOF
coracle export --dir exported
ip addr add 192.0.2.11/24 dev eth0
coracle start --data-dir /srv/second --run-dir /run/second --node-ip 192.0.2.11 \
  --cluster-cidr 10.52.0.0/16 --service-cidr 10.53.0.0/16 --listen :7443 --agent-listen :11250 \
  --ingress-http-port 8080 --ingress-https-port 8443 --merge-kubeconfig=false
coracle ctl --kubeconfig /srv/second/kubeconfig get nodes
(
  export KUBECONFIG=/srv/second/kubeconfig
  for part in exported/*; do kubectl apply --server-side -R -f $part; done
)
second kubectl get deployment hello

step Kontrol
second coracle ctl config view --raw --minify --flatten > edge-1.conf
coracle kontrol clusters add edge-1 --kubeconfig edge-1.conf -l tier=test
coracle kontrol clusters add edge-2 --pull --token-file edge-2.token
running connected env CORACLE_DATA_DIR=/srv/second CORACLE_RUN_DIR=/run/second \
  coracle agent kontrol --hub https://HUB:6443 --token-file edge-2.token
ends $pid
mkdir banner
coracle ctl create configmap banner -n default --from-literal=text=hello --dry-run=client -o yaml >banner/text.yaml
coracle kontrol push banner --selector tier=test
coracle kontrol wait bundle/banner
[ "$(second kubectl get configmap banner -o 'jsonpath={.data.text}')" = hello ]
second coracle delete
coracle ctl label kcl edge-1 tier-
coracle kontrol get --cluster edge-1
resource=$(coracle ctl get kres -o 'jsonpath={.items[0].metadata.name}')
coracle ctl wait kres "$resource" --for=jsonpath='{.metadata.deletionTimestamp}' --timeout=60s
coracle ctl patch kres NAME --type merge -p '{"spec":{"deletionPolicy":"Orphan"}}'
coracle ctl wait kres "$resource" --for=delete --timeout=60s
coracle kontrol clusters remove edge-1

step a second machine
coracle token create >join.token
running msg=running nsenter --net="/run/netns/$besideName" -- env HOME="$besideHome" CORACLE_NODE_NAME="$besideName" \
  CORACLE_DATA_DIR="$besideData" CORACLE_RUN_DIR="$besideRun" \
  coracle agent --join https://SERVER:6443 --token-file join.token
coracle ctl wait node BESIDE --for=condition=Ready --timeout=60s
coracle ctl delete node NAME
wait $pid || true # its agent ends by itself

step a CI job, and the end
sudo coracle start # says that it runs already
sudo coracle delete
