#!/usr/bin/env bash
# Starts the other architecture's control plane under QEMU, and then this machine's on its data, in half a minute:
# hack/release/emulated.sh ARCH EMULATOR. Pods need a whole machine of that architecture.
set -euo pipefail
cd "$(dirname "$0")/../.."
native=$PWD/bin/coracle program=$PWD/bin/$1/coracle
coracle=$(mktemp)
printf '#!/bin/sh\nexec %s %s "$@"\n' "$2" "$program" >"$coracle"
chmod 0755 "$coracle"
# shellcheck source=hack/host.sh
. hack/host.sh
ln -sf "$native" "$dir/bin/kubectl"
mv "$coracle" "$dir/emulated" # host.sh removes the folder
coracle=$dir/emulated
ctl() { inside "$native" ctl --kubeconfig "$dir/data/kubeconfig" "$@"; }
plane
[ "$(ctl get --raw /version | sed -n 's/.*"platform": "\(.*\)".*/\1/p')" = "linux/$1" ] || { echo "another program answers" >&2; exit 1; }
ctl create deployment web --image=web --replicas=3
ctl wait deployment/web --for=jsonpath='{.status.replicas}'=3 --timeout=60s
end_background
coracle=$native
plane
[ "$(ctl get pods -l app=web -o name | wc -l)" = 3 ] || { echo "pods are missing" >&2; exit 1; }
