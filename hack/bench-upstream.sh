#!/usr/bin/env bash
# Measures Coracle's control plane in turn with upstream's kube-apiserver and etcd on the same machine and prints
# ratios, which load disturbs less than absolute figures: `make bench-upstream`. Further arguments go to test/bench
# (-only create -rounds 1).
set -euo pipefail
cd "$(dirname "$0")/.."
coracle=$(realpath bin/coracle)
CGO_ENABLED=0 go build -trimpath -o dist/bench ./test/bench
CGO_ENABLED=0 go build -trimpath -o dist/run-upstream ./test/upstream/run
. hack/host.sh
# No pod runs here, so service accounts are disabled.
plane --disable scheduler,ingress,loadbalancer --disable-admission-plugins ServiceAccount
coproc upstream { exec nsenter --net="/run/netns/$name" -- dist/run-upstream -programs dist/upstream -dir "$dir/upstream" -address 198.51.100.2 -without-service-accounts; }
background+=("$upstream_PID")
while read -r line <&"${upstream[0]}"; do
  case $line in "export KUBECONFIG="*) beside=${line#*=} && break ;; esac
done
[ -n "${beside:-}" ] || { echo "upstream's programs did not start" >&2; exit 1; }
# Both API servers need a namespace controller, since the groups delete their namespaces.
nsenter --net="/run/netns/$name" -- "$coracle" controllers --kubeconfig "$beside" --only namespace >"$dir/controllers.log" 2>&1 &
background+=($!)
inside dist/bench -kubeconfig "$dir/data/kubeconfig" -pids "${background[0]}" -beside "$beside" -beside-pids "$upstream_PID" "$@"
