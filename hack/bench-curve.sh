#!/usr/bin/env bash
# Measures the cost of nodes and pods in steps, with a control plane and fake nodes that send heartbeats for ten
# pods each: `hack/bench-curve.sh 1000 2500 5000 10000`. Memory and processor time are the server's. Processor time
# is measured for a minute, a minute after each step, in percent of a core.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p dist
install -m 755 bin/coracle dist/coracle-installed # see bench.sh
coracle=$(realpath dist/coracle-installed)
[ $# -gt 0 ] || set -- 1000 2500 5000 10000
. hack/host.sh
k() { inside kubectl --kubeconfig "$dir/data/kubeconfig" "$@"; }
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
mib() { awk -v field="$2" '$1 == field {print int($2 / 1024)}' "/proc/$server/$1"; }

plane
server=${background[0]}
echo "nodes  pods  seconds  resident  proportional  peak (MiB)  processor %"
have=0
for nodes in "$@"; do
  began=$SECONDS more=$((nodes - have))
  nsenter --net="/run/netns/$name" -- "$coracle" node fake --count "$more" --prefix "to-$nodes-" --pods 30 --kubeconfig "$dir/data/kubeconfig" >>"$dir/fake.log" 2>&1 &
  background+=($!)
  k create deployment "to-$nodes" --image any --replicas "$((more * 10))" >/dev/null
  k rollout status deployment "to-$nodes" --timeout 30m >/dev/null
  took=$((SECONDS - began)) have=$nodes
  sleep "${SETTLE:-60}"
  before=$(ticks "$server")
  sleep "${MEASURE:-60}"
  printf '%5d %6d %7d %9d %13d %17d %12d\n' "$nodes" "$((nodes * 10))" "$took" "$(mib status VmRSS:)" "$(mib smaps_rollup Pss:)" "$(mib status VmHWM:)" \
    "$((($(ticks "$server") - before) / ${MEASURE:-60}))"
done
