#!/usr/bin/env bash
# The whole test suite: unit tests, and end-to-end tests that drive the built binary.
set -euo pipefail
unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "not gofmt-clean: $unformatted" >&2; exit 1; }
hack/deps.sh test
export PATH=$PATH:$PWD/dist/containerd/usr/bin
# Unit tests need the processors, while end-to-end tests mostly wait. So both run concurrently, with end-to-end
# tests at a higher priority.
setsid nice -n 19 hack/unit.sh &
unit=$!
trap 'kill -- -$unit $(jobs -p) 2>/dev/null || true' EXIT
status=0
# The flags are the binary's, so that its compiled packages are reused. Without the race detector, because tests of
# hostile requests measure their cost. Two sets of end-to-end tests run concurrently, since they mostly wait and each
# test has its own cluster and network: the first half of the alphabet beside the second. Attacks run alone, because
# they measure. Other clients than kubectl take minutes to compile, so `make clients` and `make nightly` test them.
e2e() { CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 30m -p 1 "$@"; }
both() {
  CGO_ENABLED=0 go test -trimpath -vet=off -c -ldflags "-s -w" -o dist/e2e.test ./test/e2e || return
  half() { (cd test/e2e && exec ../../dist/e2e.test -test.paniconexit0 -test.timeout 30m "$@"); }
  half -test.run '^Test[A-L]' &
  local first=$! failed=0
  half -test.skip '^Test[A-L]' || failed=1
  wait $first || failed=1
  return $failed
}
CGO_ENABLED=0 go test -trimpath -vet=off -timeout 5m -run Cheap ./pkg/api/registry && both && e2e ./test/e2e/envtest ./test/e2e/testcluster ./test/abuse/... &&
  CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 5m -short -run TestWatchersMissNothing ./test/robustness || status=1
wait $unit || status=1
trap - EXIT
exit $status
