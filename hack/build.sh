#!/usr/bin/env bash
# Runs `go build` with the arguments and shows its progress, since a first build takes minutes: hack/build.sh -o
# FILE PACKAGE. It counts the compiled packages in the output of -v and prints the compiler's messages.
set -euo pipefail
. "$(dirname "$0")/memory.sh"
host=$(go env GOHOSTARCH)
if [ "${GOARCH:=$host}" != "$host" ]; then # for programs with cgo; hack/deps.sh cross installs Debian's cross compiler
  case $GOARCH in
  amd64) target=x86_64-linux-gnu ;;
  arm64) target=aarch64-linux-gnu ;;
  *) echo "there is no build for $GOARCH: amd64 or arm64" >&2; exit 1 ;;
  esac
  export GOARCH CC=$target-gcc PKG_CONFIG_LIBDIR=/usr/lib/$target/pkgconfig
fi
every=10 # seconds between two lines
count=0 next=$every linking=
main=$(go list "${@: -1}")
go build -v "$@" 2>&1 | {
  while IFS= read -r line; do
    case $line in
    '#'* | *' '* | *:*) echo "$line" >&2 && continue ;; # a message of the compiler
    esac
    count=$((count + 1))
    if [ "$line" = "$main" ] && [ "$SECONDS" -ge $every ]; then
      linking=yes
      echo "  packages compiled: $count, after ${SECONDS}s; linking"
    elif [ "$SECONDS" -ge $next ]; then
      next=$((SECONDS + every))
      echo "  packages compiled: $count, after ${SECONDS}s"
    fi
  done
  if [ "$linking" ]; then echo "  built after ${SECONDS}s"; fi
}
