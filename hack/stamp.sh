#!/usr/bin/env bash
# Prints the linker flags that stamp a build: commit, state of the tree, and date (SOURCE_DATE_EPOCH, or the commit's
# date, so that the same sources give the same binary). Outside of a git repository it prints only the known ones.
set -euo pipefail
cd "$(dirname "$0")/.."
package=github.com/coracle-dev/coracle/pkg/base/version
kubectl=k8s.io/component-base/version # kubectl's commit must be the server's for --match-server-version
commit=$(git rev-parse HEAD 2>/dev/null || true)
epoch=${SOURCE_DATE_EPOCH:-}
if [ -n "$commit" ]; then
  state=clean
  git diff --quiet HEAD -- || state=dirty
  epoch=${epoch:-$(git show -s --format=%ct HEAD)}
  printf -- '-X %s.commit=%s -X %s.treeState=%s ' "$package" "$commit" "$package" "$state"
  printf -- '-X %s.gitCommit=%s -X %s.gitTreeState=%s ' "$kubectl" "$commit" "$kubectl" "$state"
fi
if [ -n "$epoch" ]; then
  printf -- '-X %s.date=%s' "$package" "$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
fi
