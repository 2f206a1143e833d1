#!/usr/bin/env bash
# Measures tasks beside the runtime alone, or messages beside NATS: in turn, in one run, so that both have the same machine.
#   hack/bench-side.sh tasks [ROUNDS [TASKS]]
#   hack/bench-side.sh messages [ROUNDS]
# It needs `make build images`.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-tasks} rounds=${2:-3} tasks=${3:-300}
mkdir -p dist
install -m 755 bin/coracle dist/coracle-installed
coracle=$(realpath dist/coracle-installed)
go build -o dist/bench ./test/bench
case $what in
tasks) go test -c -o dist/reap.test ./pkg/agent/runtime/containerd ;;
messages) go -C test/bench/nats build -o "$PWD/dist/bench-nats" . ;;
*) echo "usage: $0 tasks|messages [ROUNDS [TASKS]]" >&2; exit 2 ;;
esac
. hack/host.sh
inside "$coracle" start
for image in busybox worker; do inside "$coracle" image load "dist/images/$image.tar" >/dev/null; done
pid=$(inside "$coracle" status -o json | sed -n 's/^  "pid": \([0-9]*\),/\1/p')
bench() { inside dist/bench -kubeconfig "$dir/data/kubeconfig" -image docker.io/library/busybox:1.36 -pids "$pid" "$@" 2>/dev/null; }
for round in $(seq "$rounds"); do
  echo "round $round, load $(cut -d' ' -f1 /proc/loadavg)"
  if [ "$what" = tasks ]; then
    bench -only tasks -tasks "$tasks"
    (cd pkg/agent/runtime/containerd && ../../../../dist/reap.test -test.run '^$' -test.bench Reap -test.benchtime "${tasks}x") | grep '^Benchmark'
  else
    bench -only messages
    dist/bench-nats
  fi
done
