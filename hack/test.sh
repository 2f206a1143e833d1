#!/usr/bin/env bash
# The whole test suite. Everything runs under the race detector; the end-to-end tests drive the built binary.
set -euo pipefail
unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "not gofmt-clean: $unformatted" >&2; exit 1; }
go vet ./...
hack/deps.sh test
export PATH=$PATH:$PWD/dist/containerd/usr/bin
# shellcheck disable=SC2046
go test -race -timeout 15m $(go list ./... | grep -v -e /test/robustness -e /test/e2e -e /test/abuse)
go test -count=1 -timeout 10m ./test/e2e/...
