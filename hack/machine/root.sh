#!/usr/bin/env bash
# Builds the disk of a virtual machine from Debian's packages: hack/machine/root.sh SUITE FOLDER. The folder gets
# disk.img (ext4, 4 GiB, sparse), kernel, initrd and the key that its root accepts. Nothing is prepared for Coracle.
# SUITE arm64 is Debian 13 for that architecture, and arm64-16k has the kernel with pages of 16 KiB.
set -euo pipefail
suite=$1 out=$2 arch=amd64 kernel=amd64
case $suite in arm64*) kernel=$suite suite=trixie arch=arm64 ;; esac
packages=linux-image-$kernel,systemd-sysv,dbus,udev,kmod,openssh-server,iproute2,nftables,curl,procps,apparmor
packages+=,ufw,firewalld,docker.io # off until their steps
packages+=,xfsprogs,btrfs-progs
case $suite in bullseye | bookworm) ;; *) packages+=,docker-cli ;; esac
mkdir -p "$out"
[ "$(cat "$out/.done" 2>/dev/null)" != "$packages" ] || exit 0
for tool in mmdebstrap arch-test mke2fs ssh-keygen; do
  command -v $tool >/dev/null && continue
  echo "$tool is missing: apt-get install mmdebstrap arch-test e2fsprogs openssh-client" >&2
  exit 1
done
# A foreign root is set up by its own programs. Without a registered emulator the script runs in a user namespace that
# has one (Linux 6.7), so that the machine itself stays without: tests depend on that.
if ! arch-test "$arch" >/dev/null; then
  [ -z "${EMULATED:-}" ] && [ -e /usr/lib/binfmt.d/qemu-aarch64.conf ] ||
    { echo "this kernel cannot run programs for $arch: apt-get install qemu-user-static" >&2; exit 1; }
  export EMULATED=yes
  # shellcheck disable=SC2016
  coproc space { exec unshare --user --mount --pid --fork bash -c 'echo && read -r && mount -t proc proc /proc &&
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
    cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register && exec "$@" >&2' bash "$0" "$@"; }
  pid=$space_PID
  read -r <&"${space[0]}"
  for map in uid_map gid_map; do echo 0 0 4294967295 >"/proc/$pid/$map"; done
  echo >&"${space[1]}"
  wait "$pid"
  exit
fi
root=$(mktemp -d)
# If mmdebstrap was killed, its mounts are still there.
trap 'rm -rf --one-file-system "$root"' EXIT
# A mirror may be weeks behind testing.
mmdebstrap --quiet --architectures=$arch --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
  --include=$packages "$suite" "$root"
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
chroot "$root" systemctl disable -q firewalld ufw docker.service docker.socket containerd
# The log of the console says when the machine serves.
cat >"$root/etc/systemd/system/serves.service" <<END
[Unit]
After=ssh.service network-online.target
Wants=network-online.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo the machine serves >/dev/console'
[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl enable -q serves
cp "$root"/boot/vmlinuz-* "$out/kernel"
cp "$root"/boot/initrd.img-* "$out/initrd"
rm -f "$out/disk.img"
mke2fs -q -t ext4 -d "$root" "$out/disk.img" 4G
echo "$packages" >"$out/.done"
