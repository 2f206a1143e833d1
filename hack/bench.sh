#!/usr/bin/env bash
# Measures a fresh cluster against the budgets in pkg/README.md: `make bench`. Further arguments go to test/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p dist
# Run a copy, like an installed binary: the page cache holds the linker's output in larger folios, and each counts
# as resident as a whole (30 MiB more on Linux 6.18).
install -m 755 bin/coracle dist/coracle-installed
coracle=$(realpath dist/coracle-installed)
go build -o dist/bench ./test/bench
. hack/host.sh

size=$(stat -c %s "$coracle")
echo "binary        $((size / 1000000)) MB (budget 130)"
for _ in 1 2 3 4 5; do
  began=$(date +%s%N)
  "$coracle" version >/dev/null
  echo $((($(date +%s%N) - began) / 1000000))
done | sort -n | sed -n '3s/.*/version       & ms, the median of 5 (budget 60)/p'

inside "$coracle" start
for image in busybox worker; do inside "$coracle" image load "dist/images/$image.tar" >/dev/null; done
pid=$(inside "$coracle" status -o json | sed -n 's/^  "pid": \([0-9]*\),/\1/p')
inside dist/bench -kubeconfig "$dir/data/kubeconfig" -image docker.io/library/busybox:1.36 -pids "$pid" "$@"

# Tasks beside the runtime alone, as hack/bench-side.sh repeats them in turn.
go test -c -o dist/reap.test ./pkg/node/runtime/containerd
inside dist/bench -kubeconfig "$dir/data/kubeconfig" -image docker.io/library/busybox:1.36 -pids "$pid" \
  -only tasks -tasks 300
(cd pkg/node/runtime/containerd && ../../../../dist/reap.test -test.run '^$' -test.bench Reap -test.benchtime 300x) |
  sed -n 's/^BenchmarkReap/the runtime alone: &/p'

# Start again on the same data directory, with 1,000 objects.
inside "$coracle" ctl create namespace full >/dev/null
for i in $(seq 1000); do printf -- '---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%s, namespace: full}\n' "$i"; done |
  inside "$coracle" ctl create -f - >/dev/null
inside "$coracle" stop >/dev/null
inside "$coracle" start | sed -n 's/^Node .* is Ready after/start with 1,000 objects:/p'
