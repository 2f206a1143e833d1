#!/usr/bin/env bash
# Compiles upstream's programs into dist/upstream from the modules in hack/upstream/go.mod: kube-apiserver,
# kube-scheduler, kube-controller-manager, etcd and etcdctl. Tests run them beside Coracle (test/upstream). It takes
# minutes once, and does nothing if they are up to date.
#
#   hack/upstream.sh [PROGRAM...]     default all
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A packages=(
  [kube-apiserver]=k8s.io/kubernetes/cmd/kube-apiserver
  [kube-scheduler]=k8s.io/kubernetes/cmd/kube-scheduler
  [kube-controller-manager]=k8s.io/kubernetes/cmd/kube-controller-manager
  [etcd]=go.etcd.io/etcd/server/v3
  [etcdctl]=go.etcd.io/etcd/etcdctl/v3
)
order=(etcd kube-apiserver kube-scheduler kube-controller-manager etcdctl)
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${order[@]}")
mkdir -p dist/upstream
out=$(realpath dist/upstream)
exec 9>"$out/.lock"
flock 9 # several worktrees may share the folder
version=$(sed -n 's/^\tk8s.io\/kubernetes \(v[^ ]*\).*/\1/p' hack/upstream/go.mod)
minor=$(echo "$version" | cut -d. -f2)
stamp="-s -w -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
# A program's inputs: the pinned modules and the compiler. Not a time, which differs between worktrees.
made=$({ cat hack/upstream/go.mod; go version; } | sha256sum | cut -d' ' -f1)
for name in "${wanted[@]}"; do
  [ -n "${packages[$name]:-}" ] || { echo "there is no program $name; there are ${order[*]}" >&2; exit 2; }
  if [ -x "$out/$name" ] && [ "$(cat "$out/.$name" 2>/dev/null)" = "$made" ]; then continue; fi
  echo "building $name $version"
  # The flags are the binary's, so that its compiled packages are reused.
  (cd hack/upstream && CGO_ENABLED=0 nice -n 5 ../build.sh -trimpath -ldflags "$stamp" -o "$out/$name.new" "${packages[$name]}")
  mv "$out/$name.new" "$out/$name"
  echo "$made" >"$out/.$name"
done
