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
# no concurrency, not even a mutex, nor where neither code nor tests start goroutines, except in tests that run several
# of our packages together, such as the tests of all controllers.
concurrent='^\s*go |\bgo func|\.Go\(|\b(sync|atomic)\.|AfterFunc'
starts='^\s*go |\bgo func|\.Go\(|AfterFunc|AddCleanup|runtime\.SetFinalizer|synctest|httptest|runtest'
starts+='|registrytest|controlplane|testcluster|exec\.Command|\.(Listen|Serve|Parallel|Start|Run)\('
together='/(pkg/control/controllers|pkg/systems/kontrol|pkg/systems/buildbarn|test/kontrol)$'
raced=() plain=()
hasConcurrency() {
  [[ $1 =~ $together ]] && return 0
  [[ $1 == */controllers/* ]] && return 1
  find "$1" -maxdepth 1 -name '*.go' -not -name '*_test.go' -print0 | xargs -0r grep -qE "$concurrent" || return 1
  sed -E 's/\b[tbf]\.Run\(//' "$1"/*.go | grep -E "$starts" >/dev/null
}
for dir in $(CGO_ENABLED=1 go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... |
  grep -v -e /test/robustness -e /test/e2e -e /test/abuse -e /test/clients); do
  if hasConcurrency "$dir"; then raced+=("$dir"); else plain+=("$dir"); fi
done
CGO_ENABLED=0 go test -trimpath -vet=off -exec "env -u GOGC" "${plain[@]}" || status=1
# These tests kill processes, measure time and memory, or compute for long in one goroutine: under the race detector
# they take several times as long, and report nothing. hack/test.sh runs the tests of cheap requests.
alone='^(TestKilledAtEachAcquisition|TestAStartAfterAStormOfWritesReadsLittle|TestLongHistory|TestHostileImages'
alone+='|TestHostileImageInTheStoreIsSkipped|TestWhatClientsSendDoesNotFillTheLog'
alone+='|TestCostOf(HeadlessServices|OneService|OneIngress)|TestEndpointsOfAServiceAreBounded'
alone+='|TestObjectsInMemoryAreBounded|TestCacheModel|TestOpenAPIDescribesEveryKind|TestKubectl'
alone+='|TestHostileBodiesAreRefusedCheaply)$'
CGO_ENABLED=0 go test -trimpath -vet=off -exec "env -u GOGC" -run "$alone" \
  ./pkg/api/apiserver ./pkg/node/agent ./pkg/node/dns ./pkg/node/ingress ./pkg/node/proxy ./pkg/node/runtime/containerd \
  ./pkg/node/volume ./pkg/state/cache ./pkg/state/store ./pkg/server || status=1
# At exit a test with the race detector waits a second for late reports. goleak has found goroutines that still run
# then. They keep GOGC, which saves a tenth of their processor time: tests that measure memory count allocations.
CGO_ENABLED=1 GORACE=atexit_sleep_ms=50 go test -race -vet=off -timeout 18m \
  -skip "$alone|^TestHostile.*Cheap$" "${raced[@]}" || status=1
exit $status
