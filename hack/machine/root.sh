#!/usr/bin/env bash
# Builds the disk of a virtual machine from Debian's packages: hack/machine/root.sh SUITE FOLDER. The folder gets
# disk.img (ext4, 4 GiB, sparse), kernel, initrd and the key that its root accepts. Nothing is prepared for Coracle.
set -euo pipefail
suite=$1 out=$2
packages=linux-image-amd64,systemd-sysv,dbus,udev,kmod,openssh-server,iproute2,nftables,curl,procps,apparmor
packages+=,ufw,firewalld # both are off until their step
mkdir -p "$out"
[ "$(cat "$out/.done" 2>/dev/null)" != "$packages" ] || exit 0
for tool in mmdebstrap mke2fs ssh-keygen; do
  command -v $tool >/dev/null && continue
  echo "$tool is missing: apt-get install mmdebstrap e2fsprogs openssh-client" >&2
  exit 1
done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# A mirror may be weeks behind testing.
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include=$packages "$suite" "$root"
rm -f "$out/key" "$out/key.pub"
ssh-keygen -q -t ed25519 -N '' -f "$out/key"
install -D -m 0600 "$out/key.pub" "$root/root/.ssh/authorized_keys"
echo machine >"$root/etc/hostname"
echo '127.0.0.1 localhost machine' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
# A static address: QEMU's network has no route to other machines.
cat >"$root/etc/systemd/network/10-wired.network" <<END
[Match]
Name=en* eth*
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
END
chroot "$root" systemctl enable -q systemd-networkd ssh
chroot "$root" systemctl disable -q firewalld ufw
# The log of the console says when the machine serves.
cat >"$root/etc/systemd/system/serves.service" <<END
[Unit]
After=ssh.service network-online.target
Wants=network-online.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo the machine serves >/dev/ttyS0'
[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl enable -q serves
cp "$root"/boot/vmlinuz-* "$out/kernel"
cp "$root"/boot/initrd.img-* "$out/initrd"
rm -f "$out/disk.img"
mke2fs -q -t ext4 -d "$root" "$out/disk.img" 4G
echo "$packages" >"$out/.done"
