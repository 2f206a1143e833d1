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
# The race detector doubles the time of compiling, linking and running. It finds nothing in packages whose own code has
# no concurrency, except in tests that run several of our packages together, such as the tests of all controllers.
concurrent='^\s*go |\bgo func|\.Go\(|\b(sync|atomic)\.|AfterFunc'
together='/(pkg/control/controllers|pkg/systems/kontrol|pkg/systems/buildbarn|test/kontrol)$'
raced=() plain=()
hasConcurrency() {
  [[ $1 =~ $together ]] && return 0
  [[ $1 != */controllers/* ]] && find "$1" -maxdepth 1 -name '*.go' -not -name '*_test.go' -print0 |
    xargs -0r grep -qE "$concurrent"
}
for dir in $(CGO_ENABLED=1 go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... |
  grep -v -e /test/robustness -e /test/e2e -e /test/abuse -e /test/clients); do
  if hasConcurrency "$dir"; then raced+=("$dir"); else plain+=("$dir"); fi
done
CGO_ENABLED=0 go test -trimpath -vet=off -exec "env -u GOGC" "${plain[@]}" || status=1
# These tests kill processes, or measure time and memory: under the race detector they take several times as long, and
# report nothing. hack/test.sh runs the tests of cheap requests.
measured='^(TestKilledAtEachAcquisition|TestAStartAfterAStormOfWritesReadsLittle|TestLongHistory|TestHostileImages|TestHostileImageInTheStoreIsSkipped|TestWhatClientsSendDoesNotFillTheLog|TestCostOf(HeadlessServices|OneService|OneIngress))$'
CGO_ENABLED=0 go test -trimpath -vet=off -exec "env -u GOGC" -run "$measured" \
  ./pkg/node/agent ./pkg/node/dns ./pkg/node/ingress ./pkg/node/proxy ./pkg/node/runtime/containerd ./pkg/state/store \
  ./pkg/server || status=1
# At exit a test with the race detector waits a second for late reports. goleak has found goroutines that still run
# then.
CGO_ENABLED=1 GORACE=atexit_sleep_ms=50 go test -race -vet=off -timeout 18m -exec "env -u GOGC" \
  -skip "$measured|^TestHostile.*Cheap$" "${raced[@]}" || status=1
exit $status
