#!/usr/bin/env bash
# Runs the tests of volume sizes on a kernel with project quotas, which kernels of small machines often lack:
# Debian's User Mode Linux, downloaded into dist/uml (41 MB) and started as an ordinary process, with this machine's
# files read-only.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/dist/uml
if [ ! -x "$out/usr/bin/linux.uml" ]; then
  dir=$(mktemp -d)
  (cd "$dir" && { apt-get download -q user-mode-linux || { apt-get update -q && apt-get download -q user-mode-linux; }; }) >/dev/null 2>&1
  dpkg -x "$dir"/user-mode-linux_*.deb "$out"
  rm -rf "$dir"
fi
CGO_ENABLED=0 go test -trimpath -c -o "$out/volume.test" ./pkg/node/volume
modules=$(echo "$out"/usr/lib/uml/modules/*/kernel)
cat >"$out/init" <<END
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
for module in fs/quota/quota_tree fs/quota/quota_v2 drivers/block/loop; do busybox insmod $modules/\$module.ko; done
cd /run
$out/volume.test -test.v -test.run "TestSizes|TestForgedProjects" && echo "all passed"
busybox poweroff -f
END
chmod +x "$out/init"
timeout 300 "$out/usr/bin/linux.uml" mem=512M root=/dev/root rootfstype=hostfs ro init="$out/init" con=null con0=fd:0,fd:1 quiet </dev/null >"$out/log" 2>&1 || true
cat "$out/log"
for test in TestSizesOfVolumes TestForgedProjects; do grep -q "^--- PASS: $test" "$out/log"; done
grep -q "^all passed" "$out/log"
