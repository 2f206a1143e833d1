#!/usr/bin/env bash
# Runs every fuzz target of the module for a duration each (default 30s).
set -euo pipefail
time=${1:-30s}
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "$package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
  done
done
