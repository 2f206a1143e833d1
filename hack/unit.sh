#!/usr/bin/env bash
# Runs vet and the unit tests, with the race detector where it can find something. Part of hack/test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/memory.sh
status=0
# The flags are those of the binary and of the shim, whose compiled packages are reused. Packages that need cgo are
# vetted with the shim.
shim="./cmd/coracle-shim ./pkg/node/runtime/shim/server"
# shellcheck disable=SC2046
CGO_ENABLED=0 go vet -trimpath -vettool="$PWD/hack/vet.sh" $(go list ./... | grep -v -e /cmd/coracle-shim -e /runtime/shim/server) || status=1
# shellcheck disable=SC2086
CGO_ENABLED=1 go vet -trimpath -tags "netgo osusergo seccomp" -vettool="$PWD/hack/vet.sh" $shim || status=1
# The race detector doubles the time of compiling, linking and running. It finds nothing in packages without
# concurrency.
concurrent='goleak|^\s*go |\bgo func|\.Go\(|\b(sync|atomic)\.|synctest|AfterFunc|httptest\.New'
raced=() plain=()
for dir in $(CGO_ENABLED=1 go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | grep -v -e /test/robustness -e /test/e2e -e /test/abuse -e /test/clients); do
  if grep -qE "$concurrent" "$dir"/*.go; then raced+=("$dir"); else plain+=("$dir"); fi
done
CGO_ENABLED=0 go test -trimpath -vet=off -exec "env -u GOGC" "${plain[@]}" || status=1
# This test kills processes that it starts: under the race detector they take two and a half times as long, and report
# nothing.
killed='^TestKilledAtEachAcquisition$'
CGO_ENABLED=0 go test -trimpath -vet=off -exec "env -u GOGC" -run "$killed" ./pkg/node/agent || status=1
# At exit a test with the race detector waits a second for late reports. goleak has found goroutines that still run
# then.
CGO_ENABLED=1 GORACE=atexit_sleep_ms=50 go test -race -vet=off -timeout 18m -exec "env -u GOGC" -skip "$killed" "${raced[@]}" || status=1
exit $status
