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
# shellcheck disable=SC2046
go test -race -vet=off -timeout 15m $(go list ./... | grep -v -e /test/robustness -e /test/e2e -e /test/abuse -e /test/clients)
# What follows is built as the binary is, so that its packages serve.
export CGO_ENABLED=0
# What hostile requests cost can only be told without the race detector.
go test -trimpath -vet=off -timeout 5m -run Cheap ./pkg/registry
# One at a time: each has a cluster, and measures it.
go test -trimpath -vet=off -count=1 -timeout 15m -p 1 ./test/e2e/... ./test/abuse/...
# controller-runtime's own suites take minutes to compile: make clients, and make nightly.
go test -trimpath -vet=off -count=1 -timeout 15m -run TestGeneratedClient ./test/clients
