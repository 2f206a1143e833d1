#!/usr/bin/env bash
# Tests the files that `make release` left in dist: checksums, the archive, the install script (repeated, upgrade,
# damaged archive, uninstall), the package and the units, and that packing is reproducible. It installs everything
# below a temporary directory.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
archive=$(echo dist/coracle-v*-linux-*.tar.gz) deb=$(echo dist/coracle_*.deb)
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

# The Debian package, installed by dpkg into another root directory.
dpkg-deb -I "$deb" >"$dir/info"
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

# Packing again gives the same bytes.
SOURCE_DATE_EPOCH=$(stat -c %Y "$dir/archive/LICENSE") hack/release/release.sh >/dev/null
[ "$sums" = "$(cat dist/SHA256SUMS)" ] || fail "packing again gives other bytes"
echo "the release is good: $want"
