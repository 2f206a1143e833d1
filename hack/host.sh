# Sourced by scripts that need a separate machine: a network namespace with one address and a default route, and
# temporary directories. `inside COMMAND` runs a command there. `plane OPTION...` starts a control plane without a
# node and returns once it is ready. On exit it ends the processes of $background in reverse order and deletes the
# cluster. It needs $coracle, and sets $dir and $name.
[ "$(id -u)" = 0 ] || { echo "this needs root: it starts a cluster" >&2; exit 1; }
[ -x "$coracle" ] || { echo "$coracle is missing: run \`make build\` first" >&2; exit 1; }
dir=$(mktemp -d)
name=cor$$
inside() { nsenter --net="/run/netns/$name" -- "$@"; }
background=()
plane() {
  nsenter --net="/run/netns/$name" -- "$coracle" server --no-node --merge-kubeconfig=false "$@" >"$dir/server.log" 2>&1 &
  background+=($!)
  until inside kubectl --kubeconfig "$dir/data/kubeconfig" get --raw /readyz >/dev/null 2>&1; do
    kill -0 "$!" 2>/dev/null || { cat "$dir/server.log" >&2; exit 1; }
    sleep 0.2 # no event reports readiness
  done
}
end_background() {
  local i
  for ((i = ${#background[@]} - 1; i >= 0; i--)); do kill "${background[i]}" 2>/dev/null && wait "${background[i]}" || true; done
  background=()
}
cleanup() {
  trap - EXIT
  end_background
  inside "$coracle" delete >"$dir.log" 2>&1 || { echo "coracle delete failed:" >&2; cat "$dir.log" >&2; }
  ip netns del "$name"
  rm -rf "$dir" "$dir.log"
}
ip netns add "$name"
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir "$dir/home" "$dir/bin"
ln -s "$coracle" "$dir/bin/kubectl"
# Use the Go caches despite the separate home directory.
GOMODCACHE=$(go env GOMODCACHE) GOCACHE=$(go env GOCACHE)
export GOMODCACHE GOCACHE HOME=$dir/home KUBECONFIG='' PATH=$dir/bin:$PATH
# The eviction limits are low: the disk of this machine may be nearly full.
export CORACLE_EVICTION_HARD='nodefs.available<64Mi,imagefs.available<64Mi,nodefs.inodesFree<0%,imagefs.inodesFree<0%' CORACLE_IMAGE_GC_HIGH_THRESHOLD=100
export CORACLE_DATA_DIR=$dir/data CORACLE_RUN_DIR=$dir/run CORACLE_NODE_NAME=$name
for line in "link set lo up" "link add eth0 type veth peer name wire0" "link set eth0 up" "link set wire0 up" \
  "addr add 198.51.100.2/24 dev eth0" "route add default via 198.51.100.1 dev eth0"; do
  # shellcheck disable=SC2086
  ip -n "$name" $line
done
