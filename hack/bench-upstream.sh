#!/usr/bin/env bash
# Measures Coracle's control plane in turn with upstream's kube-apiserver, etcd on the same machine and prints ratios, which a
# busy machine disturbs less than figures: `make bench-upstream`. Further arguments go to test/bench (-only create -rounds 1).
set -euo pipefail
cd "$(dirname "$0")/.."
coracle=$(realpath bin/coracle)
CGO_ENABLED=0 go build -trimpath -o dist/bench ./test/bench
CGO_ENABLED=0 go build -trimpath -o dist/run-upstream ./test/upstream/run
. hack/host.sh
background=()
end() {
  trap - EXIT
  for pid in "${background[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" || true; done
  cleanup
}
trap end EXIT
# Pods are objects alone here, so nobody makes service accounts for them.
nsenter --net="/run/netns/$name" -- "$coracle" server --no-node --merge-kubeconfig=false --disable scheduler,ingress,loadbalancer --disable-admission-plugins ServiceAccount >"$dir/server.log" 2>&1 &
background+=($!)
coproc upstream { exec nsenter --net="/run/netns/$name" -- dist/run-upstream -programs dist/upstream -dir "$dir/upstream" -address 198.51.100.2 -without-service-accounts; }
background+=("$upstream_PID")
while read -r line <&"${upstream[0]}"; do
  case $line in "export KUBECONFIG="*) beside=${line#*=} && break ;; esac
done
[ -n "${beside:-}" ] || { echo "upstream's programs did not start" >&2; exit 1; }
until inside kubectl --kubeconfig "$dir/data/kubeconfig" get --raw /readyz >/dev/null 2>&1; do
  kill -0 "${background[0]}" 2>/dev/null || { cat "$dir/server.log" >&2; exit 1; }
  sleep 0.2 # there is no event to wait for
done
# Both need a controller of namespaces, since the groups remove theirs.
nsenter --net="/run/netns/$name" -- "$coracle" controllers --kubeconfig "$beside" --only namespace >"$dir/controllers.log" 2>&1 &
background+=($!)
inside dist/bench -kubeconfig "$dir/data/kubeconfig" -pids "${background[0]}" -beside "$beside" -beside-pids "$upstream_PID" "$@"
