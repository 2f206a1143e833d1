#!/usr/bin/env bash
# The whole test suite. Everything runs under the race detector; the end-to-end tests drive the built binary.
set -euo pipefail
unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "not gofmt-clean: $unformatted" >&2; exit 1; }
# With the flags of the binary and of the shim, whose packages are compiled already; go test need not vet them again, with all they import, for the race detector. What needs cgo is vetted as a part of the shim.
shim="./cmd/coracle-shim ./pkg/agent/runtime/shim/server"
# shellcheck disable=SC2046,SC2086
CGO_ENABLED=0 go vet -trimpath $(go list ./... | grep -v -e /cmd/coracle-shim -e /runtime/shim/server)
# shellcheck disable=SC2086
CGO_ENABLED=1 go vet -trimpath -tags "netgo osusergo seccomp" $shim
hack/deps.sh test
export PATH=$PATH:$PWD/dist/containerd/usr/bin
# Unit tests need the processors, end-to-end tests mostly wait: they run at once, and what waits comes first. What a package prints is printed whole.
# shellcheck disable=SC2046
nice -n 19 go test -race -vet=off -timeout 18m $(go list ./... | grep -v -e /test/robustness -e /test/e2e -e /test/abuse -e /test/clients) &
unit=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
status=0
# Built as the binary is, so that its packages serve. What hostile requests cost can only be told without the race detector. The end-to-end tests wait
# more than they work, and each has a cluster in a network of its own: two run at a time, those of the first half of the alphabet beside the others.
# Attacks run alone, as they measure. controller-runtime's own suites take minutes to compile: make clients, and make nightly.
e2e() { CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 15m -p 1 "$@"; }
both() {
  e2e -run '^Test[A-L]' ./test/e2e &
  local first=$! failed=0
  e2e -skip '^Test[A-L]' ./test/e2e || failed=1
  wait $first || failed=1
  return $failed
}
CGO_ENABLED=0 go test -trimpath -vet=off -timeout 5m -run Cheap ./pkg/registry && both && e2e ./test/e2e/envtest ./test/e2e/testcluster ./test/abuse/... &&
  CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 5m -short -run TestWatchersMissNothing ./test/robustness &&
  CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 15m -run TestGeneratedClient ./test/clients || status=1
wait $unit || status=1
trap - EXIT
exit $status
