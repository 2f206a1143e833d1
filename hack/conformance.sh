#!/usr/bin/env bash
# Runs upstream's conformance suite against a fresh cluster in a network namespace of its own: `make conformance`.
#
#   hack/conformance.sh [FOCUS]     FOCUS is a regular expression that narrows the tests by name
#   hack/conformance.sh --sample    the tests of test/conformance/sample.txt, which must all run and pass, in ten minutes
#
# PROCS (16) tests run at once, for at most TIMEOUT (2h). UPDATE=1 adds what passed to test/conformance/passing.txt.
# Exit 1: a test named in passing.txt failed. The whole log and the report stay in dist/conformance.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in busybox curl dig nslookup; do # they go into the stand-in images
  command -v $tool >/dev/null || { echo "$tool is missing: apt-get install busybox-static curl bind9-dnsutils" >&2; exit 1; }
done
focus=${1:-} list=test/conformance/passing.txt all=
if [ "$focus" = --sample ]; then
  list=test/conformance/sample.txt all=-all TIMEOUT=${TIMEOUT:-10m} PROCS=${PROCS:-4}
  focus=$(sed 's/[][\\.*^$+?(){}|]/\\&/g' $list | paste -sd '|')
fi
coracle=$(realpath "${CORACLE:-bin/coracle}")
out=$PWD/dist/conformance
mkdir -p "$out"

# What is built once, and again when the module or the stand-ins change.
stale() { [ ! -e "$1" ] || [ -n "$(find hack/conformance -newer "$1" -type f -not -path '*/report/*' -print -quit)" ]; }
if stale "$out/e2e.test"; then
  echo "building the suite (minutes, once)"
  # Fixtures are chosen by the suite's own version, which is stamped into a binary.
  minor=$(cd hack/conformance && go list -m -f '{{.Version}}' k8s.io/kubernetes | cut -d. -f2)
  stamp="-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
  (cd hack/conformance && go build -o "$out/ginkgo" github.com/onsi/ginkgo/v2/ginkgo && CGO_ENABLED=0 go test -c -trimpath -ldflags "-s -w $stamp" -o "$out/e2e.test" .)
fi
if stale "$out/images.tar"; then
  echo "building its images"
  (cd hack/conformance && go run ./images -out "$out/images.tar")
fi
(cd hack/conformance && go build -o "$out/report" ./report)

. hack/host.sh
inside "$coracle" start
inside "$coracle" image load "$out/images.tar" >"$out/coracle.txt"
echo "running the suite; its log is $out/suite.log"
rm -f "$out/report.json"
cd hack/conformance # ginkgo asks the go command for its version, which must not need the network
inside "$out/ginkgo" --procs="${PROCS:-16}" --timeout="${TIMEOUT:-2h}" --no-color --label-filter=Conformance --focus="$focus" \
  --keep-going --output-dir="$out" --json-report=report.json "$out/e2e.test" -- \
  --provider=skeleton --kubeconfig="$dir/data/kubeconfig" >"$out/suite.log" 2>&1 || true
cd ../..
cp "$dir/data/coracle.log" "$out/coracle.log"
[ -e "$out/report.json" ] || { tail -20 "$out/suite.log" >&2; echo "the suite wrote no report" >&2; exit 1; }
"$out/report" -passing $list $all ${UPDATE:+-update} "$out/report.json"
