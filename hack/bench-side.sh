#!/usr/bin/env bash
# Measures tasks beside the runtime alone, messages beside NATS, or Kontrol with a second cluster on this machine
# beside kubectl and plain loops. Both sides run in turn in one run, so that they have the same machine.
#   hack/bench-side.sh tasks [ROUNDS [TASKS]]
#   hack/bench-side.sh messages [ROUNDS]
#   hack/bench-side.sh kontrol [ROUNDS [RESOURCES]]
# It needs `make build`, and all but kontrol `make images`.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-tasks} rounds=${2:-3} tasks=${3:-300}
mkdir -p dist
install -m 755 bin/coracle dist/coracle-installed
coracle=$(realpath dist/coracle-installed)
go build -o dist/bench ./test/bench
case $what in
tasks) go test -c -o dist/reap.test ./pkg/node/runtime/containerd ;;
messages) go -C test/bench/nats build -o "$PWD/dist/bench-nats" . ;;
kontrol) ;;
*) echo "usage: $0 tasks|messages|kontrol [ROUNDS [TASKS|RESOURCES]]" >&2; exit 2 ;;
esac
. hack/host.sh
if [ "$what" = kontrol ]; then
  serve() { # NAME PORT: starts a control plane in the background and waits until it is ready
    mkfifo "$dir/$1.log"
    exec {log}<>"$dir/$1.log"
    CORACLE_DATA_DIR=$dir/$1 CORACLE_RUN_DIR=$dir/$1-run inside "$coracle" server --no-node --listen ":$2" --merge-kubeconfig=false 2>&"$log" &
    timeout 60 grep -q -m1 msg=running <&"$log"
    cat <&"$log" >/dev/null &
    sinks+=($!)
  }
  sinks=()
  ended() { for of in hub target; do [ ! -e "$dir/$of/coracle.pid" ] || kill "$(cat "$dir/$of/coracle.pid")"; done; kill "${sinks[@]}"; wait; }
  trap 'ended; cleanup' EXIT
  serve hub 6443
  serve target 7443
  for round in $(seq "$rounds"); do
    echo "round $round, load $(cut -d' ' -f1 /proc/loadavg)"
    inside dist/bench -kubeconfig "$dir/hub/kubeconfig" -target "$dir/target/kubeconfig" -pids "$(cat "$dir/hub/coracle.pid")" -target-pids "$(cat "$dir/target/coracle.pid")" \
      -kubectl "$coracle ctl" -only kontrol -resources "${3:-1000}"
  done
  exit
fi
inside "$coracle" start
for image in busybox worker; do inside "$coracle" image load "dist/images/$image.tar" >/dev/null; done
pid=$(inside "$coracle" status -o json | sed -n 's/^  "pid": \([0-9]*\),/\1/p')
bench() { inside dist/bench -kubeconfig "$dir/data/kubeconfig" -image docker.io/library/busybox:1.36 -pids "$pid" "$@" 2>/dev/null; }
for round in $(seq "$rounds"); do
  echo "round $round, load $(cut -d' ' -f1 /proc/loadavg)"
  if [ "$what" = tasks ]; then
    bench -only tasks -tasks "$tasks"
    (cd pkg/node/runtime/containerd && ../../../../dist/reap.test -test.run '^$' -test.bench Reap -test.benchtime "${tasks}x") | grep '^Benchmark'
  else
    bench -only messages
    dist/bench-nats
  fi
done
