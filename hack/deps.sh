#!/usr/bin/env bash
# Installs the packages that a new Debian machine needs to build and test Coracle, except Go. With "test" it also
# unpacks containerd into dist (26 MB, 3 s) for the tests of --containerd; unpacked, it starts no service. With
# "conformance" it also installs the tools in that suite's images, with "bazel" Bazel, and with "cross" the compiler and
# libraries for the other architecture of a release, and the emulator that tries its program.
set -euo pipefail
command -v go >/dev/null || { echo "Go is missing: install Go 1.26 or newer (https://go.dev/doc/install)" >&2; exit 1; }
missing=()
packages="gcc libc6-dev pkg-config libseccomp-dev busybox-static curl git iproute2 nftables procps util-linux"
if [ "${1:-}" = conformance ]; then packages+=" bind9-dnsutils"; fi
if [ "${1:-}" = bazel ]; then packages+=" bazel-bootstrap"; fi
if [ "${1:-}" = cross ]; then
  other=arm64 gcc=gcc-aarch64-linux-gnu
  [ "$(dpkg --print-architecture)" = amd64 ] || other=amd64 gcc=gcc-x86-64-linux-gnu
  packages+=" $gcc libc6-dev-$other-cross libseccomp-dev:$other qemu-user-static"
fi
have() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
for package in $packages; do
  have "$package" || missing+=("$package")
done
if [ ${#missing[@]} -ne 0 ]; then
  [ "$(id -u)" -eq 0 ] || { echo "missing packages: ${missing[*]}: install them as root with hack/deps.sh ${1:-}" >&2; exit 1; }
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if [ "${1:-}" = cross ] && ! dpkg --print-foreign-architectures | grep -qx "$other"; then
    dpkg --add-architecture "$other"
    apt-get update -q >/dev/null
  fi
  apt-get install -y -q "${missing[@]}" >/dev/null 2>&1 || { apt-get update -q >/dev/null && apt-get install -y -q "${missing[@]}" >/dev/null; }
fi
if [ "${1:-}" = test ] && ! command -v containerd >/dev/null && [ ! -x dist/containerd/usr/bin/containerd ]; then
  dir=$(mktemp -d)
  if (cd "$dir" && timeout 120 sh -c 'apt-get download -q containerd || { apt-get update -q && apt-get download -q containerd; }') >/dev/null 2>&1; then
    dpkg -x "$dir"/containerd_*.deb dist/containerd
  else
    echo "could not get containerd: the tests of --containerd will be skipped" >&2
  fi
  rm -rf "$dir"
fi
