#!/usr/bin/env bash
# Tests the files that `make release` left in dist: checksums, the archive, the install script (repeated, upgrade,
# damaged archive, uninstall), the package and the units, the other architecture's program and control plane under
# QEMU, the image, and that packing is reproducible. It installs everything below a temporary directory.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
arch=$(go env GOHOSTARCH)
archive=$(echo dist/coracle-v*-linux-"$arch".tar.gz) deb=$(echo dist/coracle_*_"$arch".deb)
want=$(bin/coracle version)

(cd dist && sha256sum -c --quiet SHA256SUMS)
sums=$(cat dist/SHA256SUMS)

# The archive: a static program that runs in an empty root directory.
mkdir "$dir/archive"
tar -xzf "$archive" -C "$dir/archive" --strip-components=1
[ "$(chroot "$dir/archive" /coracle version)" = "$want" ] || fail "the archive's program is another one"

# The install script.
root=$dir/root
mkdir "$root"
run() { sh dist/install.sh --root "$root" "$@"; }
run "$archive" >"$dir/out"
grep -q installed "$dir/out" || fail "no word of the installation"
[ "$("$root/usr/local/bin/coracle" version)" = "$want" ] || fail "another program is installed"
before=$(cd "$root" && find . -type f -printf '%p %T@ %m\n' | sort)
run "$archive" | grep -q 'already installed' || fail "not idempotent"
[ "$before" = "$(cd "$root" && find . -type f -printf '%p %T@ %m\n' | sort)" ] || fail "the second time changed files"
echo old >"$root/usr/local/bin/coracle"
run "$archive" >/dev/null
[ "$("$root/usr/local/bin/coracle" version)" = "$want" ] || fail "an old program is not replaced"
run dist | grep -q 'already installed' || fail "the folder leads to another program"
run --prefix /opt "$archive" >/dev/null
grep -q '^ExecStart=/opt/bin/coracle server' "$root/etc/systemd/system/coracle-server.service" || fail "the unit does not follow --prefix"
run --prefix /opt --uninstall >/dev/null
run --uninstall >/dev/null
run --uninstall >/dev/null
mkdir -p "$root/var/lib/coracle"
touch "$root/var/lib/coracle/node-name"
if run --uninstall >"$dir/out" 2>&1; then fail "it removes the program of a cluster that is there"; fi
grep -q -- --delete-data "$dir/out" || fail "it does not say what to do: $(cat "$dir/out")"
run --uninstall --keep-data | grep -q 'still in' || fail "it does not say that data stays"
rm -r "$root/var/lib/coracle"
[ -z "$(find "$root" -type f)" ] || fail "uninstalling leaves $(find "$root" -type f)"

# The script refuses a damaged archive, a wrong or missing checksum and an http URL, and installs nothing.
mkdir "$dir/bad"
cp "$archive" dist/SHA256SUMS "$dir/bad"
printf x >>"$dir/bad/$(basename "$archive")"
refused() { if run "$@" >"$dir/out" 2>&1; then fail "accepted: $*"; fi; [ -z "$(find "$root" -type f)" ] || fail "installed: $*"; }
refused "$dir/bad/$(basename "$archive")"
grep -q checksum "$dir/out" || fail "it does not say that the checksum is wrong"
refused --sha256 "$(printf '0%.0s' $(seq 64))" "$archive"
: >"$dir/bad/SHA256SUMS"
refused "$dir/bad/$(basename "$archive")"
refused "http://127.0.0.1/$(basename "$archive")"

# It knows the machine: the other architecture's archive is refused, and chosen there.
machine() { # NAME of the machine, arguments of the install script
  printf '#!/bin/sh\necho %s\n' "$1" >"$dir/uname" && chmod 0755 "$dir/uname"
  shift
  PATH=$dir:$PATH refused "$@"
}
if [ "$arch" = amd64 ]; then other=arm64 there=aarch64; else other=amd64 there=x86_64; fi
refused dist/coracle-v*-linux-$other.tar.gz
grep -q "not for this machine.*linux-$arch" "$dir/out" || fail "it does not say what to take: $(cat "$dir/out")"
machine riscv64 dist
grep -q 'no release for riscv64' "$dir/out" || fail "it does not know the machine: $(cat "$dir/out")"
machine $there "$archive"
grep -q "not for this machine.*linux-$other" "$dir/out" || fail "it does not say what to take: $(cat "$dir/out")"
mkdir "$dir/release"
echo "$(printf '0%.0s' $(seq 64))  coracle-v9-linux-$other.tar.gz" >"$dir/release/SHA256SUMS"
machine $there "$dir/release"
grep -q "coracle-v9-linux-$other.tar.gz: no such file" "$dir/out" || fail "it chooses another archive: $(cat "$dir/out")"

# The Debian package, installed by dpkg into another root directory.
dpkg-deb -c "$deb" | awk '{print $6}' >"$dir/contents"
for file in ./usr/bin/coracle ./usr/lib/systemd/system/coracle-server.service ./usr/lib/systemd/system/coracle-agent.service ./usr/share/doc/coracle/copyright \
  ./usr/share/man/man1/coracle.1.gz ./usr/share/bash-completion/completions/coracle; do
  grep -qx "$file" "$dir/contents" || fail "the package lacks $file"
done
dpkg-deb -c "$deb" | awk '$2 != "root/root" {exit 1}' || fail "the package has files that are not root's"
if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error,warning "$deb" >"$dir/out" 2>&1 || fail "$(cat "$dir/out")"
fi
mkdir -p "$dir/deb/var/lib/dpkg"/{info,updates,triggers} "$dir/deb/bin" "$dir/deb/run/systemd/system"
touch "$dir/deb/var/lib/dpkg/status"
cp /bin/busybox "$dir/deb/bin/sh" # for the maintainer scripts
printf '#!/bin/sh\necho "$@" >>/systemctl.log\n[ "$1" != is-active ]\n' >"$dir/deb/bin/systemctl"
chmod 0755 "$dir/deb/bin/systemctl"
dpkg --root="$dir/deb" --force-not-root --log=/dev/null -i "$deb" >"$dir/out" 2>&1 || fail "$(cat "$dir/out")"
[ "$(chroot "$dir/deb" /usr/bin/coracle version)" = "$want" ] || fail "the package's program is another one"
dpkg --root="$dir/deb" --log=/dev/null -i "$deb" >"$dir/out" 2>&1 || fail "again: $(cat "$dir/out")"
# logind's delay is the agent's default grace period, from the installation until the removal.
rereads() { [ "$(grep -cx 'kill --signal=HUP systemd-logind.service' "$dir/deb/systemctl.log")" = "$1" ] || fail "logind: $(cat "$dir/deb/systemctl.log")"; }
delay=$dir/deb/usr/lib/systemd/logind.conf.d/coracle.conf
grace=$(bin/coracle help options | sed -n 's/^`--shutdown-grace-period` *`\([0-9]*\)s`.*/\1/p')
[ -n "$grace" ] && grep -qx "InhibitDelayMaxSec=$grace" "$delay" || fail "logind waits for $(cat "$delay"), the units for ${grace}s"
rereads 2
if command -v systemd-analyze >/dev/null; then
  systemd-analyze --root="$dir/deb" cat-config systemd/logind.conf 2>/dev/null | grep -qx "InhibitDelayMaxSec=$grace" || fail "logind does not read $delay"
  for role in server agent; do # against this machine's units, with the program's temporary path
    sed "s|/usr/bin/coracle|$dir/deb/usr/bin/coracle|" "$dir/deb/usr/lib/systemd/system/coracle-$role.service" >"$dir/coracle-$role.service"
  done
  systemd-analyze verify "$dir/coracle-server.service" "$dir/coracle-agent.service" >"$dir/out" 2>&1 || fail "$(cat "$dir/out")"
  if grep coracle- "$dir/out"; then fail "systemd-analyze complains"; fi
fi
dpkg --root="$dir/deb" --log=/dev/null --remove coracle >"$dir/out" 2>&1 || fail "remove: $(cat "$dir/out")"
[ ! -e "$delay" ] || fail "removing leaves $delay"
rereads 3
dpkg --root="$dir/deb" --log=/dev/null --purge coracle >"$dir/out" 2>&1 || fail "purge: $(cat "$dir/out")"
[ ! -e "$dir/deb/usr/bin/coracle" ] || fail "purging leaves the program"

# The other architecture: the same files with another program, static, which runs and is the same version.
aside=$(echo dist/coracle_*_$other.deb)
[ "$(dpkg-deb -f "$deb" Architecture) $(dpkg-deb -f "$aside" Architecture)" = "$arch $other" ] || fail "the packages' architectures are wrong"
dpkg-deb -c "$aside" | awk '{print $6}' | diff "$dir/contents" - || fail "the packages have other files"
mkdir "$dir/other"
tar -xzf dist/coracle-v*-linux-$other.tar.gz -C "$dir/other" --strip-components=1
dpkg-deb --fsys-tarfile "$aside" | tar -xOf - ./usr/bin/coracle | cmp - "$dir/other/coracle" || fail "archive and package have different programs"
LC_ALL=C readelf -hl "$dir/other/coracle" >"$dir/elf"
if [ $other = arm64 ]; then grep -q 'Machine:.*AArch64' "$dir/elf"; else grep -q 'Machine:.*X86-64' "$dir/elf"; fi || fail "the program is not for $other: $(cat "$dir/elf")"
! grep -q INTERP "$dir/elf" || fail "the program for $other is not static"
[ "$("qemu-$there-static" "$dir/other/coracle" version)" = "${want/$arch/$other}" ] || fail "the program for $other is another one"
hack/release/emulated.sh $other "qemu-$there-static" >"$dir/out" 2>&1 || fail "the program for $other does not serve: $(cat "$dir/out")"
for sbom in coracle.cdx.json:amd64 coracle-arm64.cdx.json:arm64; do # the program, the shim and the checker
  [ "$(grep -A1 '"go:GOARCH"' "dist/${sbom%:*}" | grep -c "\"${sbom#*:}\"")" = 3 ] || fail "$sbom: a program in it is for another architecture"
done

# The image is for both.
blob() { tar -xOf dist/coracle-image.tar "$1"; }
index=$(blob index.json | sed -n 's/.*"digest": *"sha256:\([0-9a-f]*\)".*/\1/p' | head -n 1)
[ "$(blob "blobs/sha256/$index" | tr '{,' '\n\n' | sed -n 's/.*"architecture": *"\([a-z0-9]*\)".*/\1/p' | tr '\n' ' ')" = "amd64 arm64 " ] ||
  fail "the image lacks an architecture: $(blob "blobs/sha256/$index")"

# Packing again gives the same bytes.
SOURCE_DATE_EPOCH=$(stat -c %Y "$dir/archive/LICENSE") hack/release/release.sh >/dev/null
[ "$sums" = "$(cat dist/SHA256SUMS)" ] || fail "packing again gives other bytes"
echo "the release is good: $want, and for $other"
