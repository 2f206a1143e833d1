#!/usr/bin/env bash
# Starts a cluster on this machine, loads the images, applies the example, and fetches its page.
set -euo pipefail
coracle=bin/coracle
$coracle start
$coracle image load dist/images/*.tar
$coracle ctl apply -f manifests/examples/hello.yaml
$coracle ctl rollout status deployment/hello --timeout=60s
address=$($coracle ctl get service hello -o 'jsonpath={.spec.clusterIP}')
echo
echo "http://$address answers:"
for _ in 1 2 3; do curl -fsS --max-time 5 --retry 20 --retry-all-errors --retry-delay 1 "http://$address" | sed 's/^/  /'; done
echo
$coracle ctl get nodes -o wide
echo
$coracle ctl get pods -A -o wide
