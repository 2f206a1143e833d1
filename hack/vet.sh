#!/usr/bin/env bash
# go vet's tool for this module's packages alone: hack/vet.sh is given as -vettool. The usual tool also reads every imported package for the sake of the functions in it
# that wrap Printf, which is two minutes of compiling nothing; what this misses by it, make lint finds.
set -euo pipefail
config=${*: -1}
if [[ $config == *.cfg ]] && grep -q '"VetxOnly": true' "$config"; then exit 0; fi
exec "$(go env GOTOOLDIR)/vet" "$@"
