#!/usr/bin/env bash
# Checks that take too long for each change: `make nightly` runs all, `hack/nightly.sh STEP...` only the named ones.
# All steps run even if one fails; failures are listed at the end. Logs are in dist/nightly.
set -uo pipefail
cd "$(dirname "$0")/.."
out=dist/nightly
mkdir -p $out
steps=(lint release machine conformance netpol users robustness clients upstream buildbarn csi database console quota kills storms fleet abuse fuzz)
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${steps[@]}")
for name in "${wanted[@]}"; do
  if [[ " ${steps[*]} " != *" $name "* ]]; then
    echo "there is no step $name; there are ${steps[*]}" >&2
    exit 2
  fi
done
run() { # STEP
  case $1 in
  lint) make lint ;;
  release) make release ;;
  machine) make machine ;;
  conformance) make conformance FOCUS= ;;
  netpol) make conformance FOCUS=--netpol ;;
  users) make conformance FOCUS=--users ;;
  # Contended keys and checked watches, three times because crashes are random.
  robustness) go test -count=3 -v -timeout 90m ./test/robustness/... ;;
  clients) make clients ;;
  upstream) make upstream-tests ;;
  buildbarn) make buildbarn ;;
  csi) make csi ;;
  database) make database ;;
  console) make build images && CORACLE_TEST_CONSOLE=1 go test -count=1 -v -run TestConsoleBlocks ./test/e2e ;;
  quota) hack/quota.sh ;; # needs a kernel with project quotas
  kills) CORACLE_TEST_ALL_KILLS=1 go test -count=1 -timeout 30m -run TestKilledAtEachAcquisition ./pkg/node/agent ;;
  storms) CORACLE_TEST_STORM=1 go test -count=1 -timeout 60m -run 'TestMessagesSurvive|TestTasksSurviveKills|TestJoinedAgentIsKilled' ./test/e2e ;;
  # Ten clusters with 1,000 Resources, clusters that are offline for minutes, a target that is killed during
  # applies, and many interleavings of events on a few clusters.
  fleet)
    CORACLE_TEST_FLEET=1 CORACLE_TEST_OFFLINE=4m go test -count=1 -v -timeout 30m ./test/kontrol &&
      make build && CORACLE_TEST_FLEET=1 go test -count=1 -v -timeout 10m -run TestKontrolTargetKilled ./test/e2e &&
      go test -count=1 -timeout 30m -run TestKontrolNeverLies ./pkg/systems/kontrol -rapid.checks=300
    ;;
  abuse) go test -count=1 -v -timeout 30m ./test/abuse ;;
  fuzz) make fuzz FUZZTIME="${FUZZTIME:-10m}" ;;
  esac
}
failed=()
for name in "${wanted[@]}"; do
  began=$SECONDS
  echo "$name ..."
  if run "$name" >"$out/$name.log" 2>&1; then
    echo "$name passed after $((SECONDS - began)) s"
  else
    echo "$name FAILED after $((SECONDS - began)) s: $out/$name.log" >&2
    tail -n 20 "$out/$name.log" >&2
    failed+=("$name")
  fi
done
if [ ${#failed[@]} -ne 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
