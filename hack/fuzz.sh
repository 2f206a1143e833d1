#!/usr/bin/env bash
# Runs every fuzz target of the module for a duration each (default 30s). Then it measures the processor time of
# requests that grow: all attacks of test/abuse/cost, and random ones for the same duration.
set -euo pipefail
time=${1:-30s}
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "$package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
  done
done
CORACLE_TEST_COST=$time go test -count=1 -timeout 0 -v ./test/abuse/cost
