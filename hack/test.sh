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
trap 'kill $unit 2>/dev/null || true' EXIT
status=0
# Built as the binary is, so that its packages serve. What hostile requests cost can only be told without the race detector. The end-to-end tests run
# one at a time: each has a cluster, and measures it. controller-runtime's own suites take minutes to compile: make clients, and make nightly.
CGO_ENABLED=0 go test -trimpath -vet=off -timeout 5m -run Cheap ./pkg/registry &&
  CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 15m -p 1 ./test/e2e/... ./test/abuse/... &&
  CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 5m -short -run TestWatchersMissNothing ./test/robustness &&
  CGO_ENABLED=0 go test -trimpath -vet=off -count=1 -timeout 15m -run TestGeneratedClient ./test/clients || status=1
wait $unit || status=1
trap - EXIT
exit $status
