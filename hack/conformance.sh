#!/usr/bin/env bash
# Runs upstream's conformance suite against a fresh cluster in a network namespace: `make conformance`.
#
#   hack/conformance.sh [FOCUS]     FOCUS is a regular expression that selects tests by name
#   hack/conformance.sh --sample    the tests in test/conformance/sample.txt, which must all run and pass, in ten minutes
#   hack/conformance.sh --netpol    upstream's tests of network policies (not part of conformance), test/conformance/netpol.txt
#   hack/conformance.sh --users     upstream's tests of pods with user namespaces, likewise, test/conformance/users.txt
#
# The suite wants two nodes, so the cluster has two network namespaces; NODES=1 leaves the second out. PROCS (16)
# tests run concurrently, for at most TIMEOUT (2h). UPDATE=1 adds the passed tests to test/conformance/passing.txt.
# Exit status 1: a test in passing.txt failed. Logs and reports stay in dist/conformance and its folders sample,
# netpol and users.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in busybox curl dig nslookup; do # the stand-in images contain these
  command -v $tool >/dev/null || { echo "$tool is missing: apt-get install busybox-static curl bind9-dnsutils" >&2; exit 1; }
done
focus=${1:-} list=test/conformance/passing.txt all= labels=Conformance label=Conformance
out=$PWD/dist/conformance
logs=$out # logs are per run; builds are shared
if [ "$focus" = --sample ]; then
  logs=$out/sample list=test/conformance/sample.txt all=-all TIMEOUT=${TIMEOUT:-10m} PROCS=${PROCS:-4}
  focus=$(sed 's/[][\\.*^$+?(){}|]/\\&/g' $list | paste -sd '|')
fi
if [ "$focus" = --netpol ]; then
  # Without SCTP, which needs a kernel module.
  logs=$out/netpol list=test/conformance/netpol.txt all=-all focus= label=Feature:NetworkPolicy PROCS=${PROCS:-4}
  labels='Feature: containsAny NetworkPolicy && !(Feature: containsAny SCTPConnectivity)'
fi
if [ "$focus" = --users ]; then
  logs=$out/users list=test/conformance/users.txt all=-all focus= label=Feature:UserNamespacesSupport PROCS=${PROCS:-4}
  labels='Feature: containsAny UserNamespacesSupport'
fi
coracle=$(realpath "${CORACLE:-bin/coracle}")
mkdir -p "$out" "$logs"

# stale reports whether FILE must be built again because a SOURCE has changed.
stale() { # FILE SOURCE...
  local file=$1
  shift
  [ ! -e "$file" ] || [ -n "$(cd hack/conformance && find "$@" -newer "$file" -type f -print -quit)" ]
}
if stale "$out/e2e.test" go.mod conformance_test.go pin.go; then
  echo "building the suite (minutes, once)"
  # The suite chooses fixtures by its own version, which is stamped into a binary.
  minor=$(cd hack/conformance && go list -m -f '{{.Version}}' k8s.io/kubernetes | cut -d. -f2)
  stamp="-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
  (cd hack/conformance && go build -o "$out/ginkgo" github.com/onsi/ginkgo/v2/ginkgo && CGO_ENABLED=0 go test -c -vet=off -trimpath -ldflags "-s -w $stamp" -o "$out/e2e.test" .)
fi
export KUBE_TEST_REPO_LIST=$PWD/hack/conformance/repositories.yaml
if stale "$out/images.tar" go.mod images ../images/tools repositories.yaml; then
  echo "building its images"
  (cd hack/conformance && go run ./images -out "$out/images.tar")
fi
(cd hack/conformance && go build -o "$out/report" ./report && go build -o "$out/registry" ./registry)

. hack/host.sh
# become runs a command in the second machine. It replaces the shell, so call it in a subshell or in the background.
become() { exec nsenter --net="/run/netns/${name}b" -- env CORACLE_DATA_DIR="$dir/other" CORACLE_RUN_DIR="$dir/other-run" CORACLE_NODE_NAME="${name}b" "$@"; }
end() {
  trap - EXIT
  end_background
  if [ -e "/run/netns/${name}b" ]; then
    (become "$coracle" delete) >"$logs/delete.log" 2>&1 || { echo "coracle delete of the second node failed:" >&2; cat "$logs/delete.log" >&2; }
    ip netns del "${name}b"
  fi
  cleanup
}
trap end EXIT
coproc registry { exec nsenter --net="/run/netns/$name" -- "$out/registry" -listen 0.0.0.0:5000 -images "$out/images.tar" -blobs "$dir/blobs"; }
background+=("$registry_PID")
read -r _ <&"${registry[0]}" || { echo "the registry of the images does not run" >&2; exit 1; }
inside "$coracle" start
inside "$coracle" image load "$out/images.tar" >"$logs/coracle.txt"
if [ "${NODES:-2}" != 1 ]; then
  ip netns add "${name}b"
  ip -n "$name" link set wire0 netns "${name}b" name eth0
  for line in "link set lo up" "link set eth0 up" "addr add 198.51.100.3/24 dev eth0" "route add default via 198.51.100.1 dev eth0"; do
    # shellcheck disable=SC2086
    ip -n "${name}b" $line
  done
  inside "$coracle" token create >"$dir/token"
  become "$coracle" agent --join https://198.51.100.2:6443 --token-file "$dir/token" >"$logs/agent.log" 2>&1 &
  background+=($!)
  become "$out/registry" -forward 198.51.100.2:5000 &
  background+=($!)
  inside kubectl wait --for=create "node/${name}b" --timeout=60s >/dev/null
  inside kubectl wait --for=condition=Ready "node/${name}b" --timeout=60s >/dev/null
  (become "$coracle" image load "$out/images.tar") >>"$logs/coracle.txt"
fi
echo "running the suite; its log is $logs/suite.log"
rm -f "$logs/report.json"
cd hack/conformance # ginkgo runs `go version`, which must not need the network
inside "$out/ginkgo" --procs="${PROCS:-16}" --timeout="${TIMEOUT:-2h}" --no-color --label-filter="$labels" --focus="$focus" \
  --keep-going --output-dir="$logs" --json-report=report.json "$out/e2e.test" -- \
  --provider=skeleton --kubeconfig="$dir/data/kubeconfig" >"$logs/suite.log" 2>&1 || true
cd ../..
cp "$dir/data/coracle.log" "$logs/coracle.log"
[ -e "$logs/report.json" ] || { tail -20 "$logs/suite.log" >&2; echo "the suite wrote no report" >&2; exit 1; }
"$out/report" -label $label -passing $list $all ${UPDATE:+-update} "$logs/report.json"
