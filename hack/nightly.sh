#!/usr/bin/env bash
# Checks that take too long for each change: `make nightly`. A failure does not stop the others; failures are listed at the end. Logs are in dist/nightly.
set -uo pipefail
cd "$(dirname "$0")/.."
out=dist/nightly
rm -rf $out
mkdir -p $out
failed=()
step() { # NAME COMMAND...
  local name=$1 began=$SECONDS
  shift
  echo "$name ..."
  if "$@" >$out/$name.log 2>&1; then
    echo "$name passed after $((SECONDS - began)) s"
  else
    echo "$name FAILED after $((SECONDS - began)) s: $out/$name.log" >&2
    tail -n 20 $out/$name.log >&2
    failed+=("$name")
  fi
}
step lint make lint
step release make release
step conformance make conformance FOCUS=
# Contended keys and checked watches; three times, since crashes are random.
step robustness go test -count=3 -v -timeout 90m ./test/robustness/...
step clients make clients
step kills env CORACLE_TEST_ALL_KILLS=1 go test -count=1 -timeout 30m -run TestKilledAtEachAcquisition ./pkg/agent
step storms env CORACLE_TEST_STORM=1 go test -count=1 -timeout 60m -run 'TestMessagesSurvive|TestTasksSurviveKills' ./test/e2e
step abuse go test -count=1 -v -timeout 30m ./test/abuse
step fuzz make fuzz FUZZTIME="${FUZZTIME:-10m}"
if [ ${#failed[@]} -ne 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
