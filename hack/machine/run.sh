#!/usr/bin/env bash
# Tries the release's package on virtual machines with Debian as it is installed: hack/machine/run.sh [SUITE...]. Each
# machine boots from a fresh copy of its disk and goes through the steps of steps.sh. SUITE arm64 is Debian 13 for that
# architecture, with fewer steps; arm64-16k is the same with pages of 16 KiB. The report has the seconds of each step;
# logs are in dist/machine/SUITE, with the second of each command. QEMU emulates the processor, which takes some fifteen
# minutes a machine and twice that for trixie, which has more steps; MACHINE_ACCEL=kvm uses the real one. CUTS is how
# often the power is cut during writes, image loads and pod starts (default 3, a minute and a half each). STEPS names
# some of the steps; MEMORY, in MiB, and PROCESSORS make a smaller machine.
set -uo pipefail
cd "$(dirname "$0")/../.."
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie arm64)
if ! command -v qemu-img >/dev/null; then
  echo "QEMU is missing: apt-get install qemu-system-x86 qemu-system-arm qemu-utils mmdebstrap" >&2
  exit 1
fi
qemu=
CUTS=${CUTS:-3}
first="before install hello pods network claim systems limits"
every="$first eviction swap apparmor kill restart upgrade reboot rebooted power rebooted"
all="${every/install/install filesystems docker} cuts clock purge"
all="${all/apparmor/apparmor firewall nested}"

choose() { # SUITE: sets what depends on the machine's architecture
  arch=amd64 images=dist/images console=ttyS0
  machine=(qemu-system-x86_64 -accel "${MACHINE_ACCEL:-tcg,thread=multi}" -cpu max)
  steps=(${STEPS:-$every purge})
  [ "$1" != trixie ] || steps=(${STEPS:-$all})
  if [[ $1 = arm64* ]]; then
    arch=arm64 images=dist/images-arm64 console=ttyAMA0
    # "max" has pointer authentication, whose emulation is slow. A Cortex-A72 has no pages of 16 KiB.
    machine=(qemu-system-aarch64 -accel tcg,thread=multi -machine virt -cpu neoverse-n1)
    steps=(${STEPS:-$first images kill restart reboot rebooted purge})
  fi
  deb=$(echo dist/coracle_*_$arch.deb)
  [ -e "$deb" ] || { echo "dist has no package for $arch: run make release" >&2; return 1; }
  [ -e $images/hello.tar ] || { echo "$images has no images: run make images ARCH=$arch" >&2; return 1; }
}
pack() { # the machine's second disk
  local more=()
  [[ " ${steps[*]} " != *" nested "* ]] || more+=(dist/coracle-image.tar)
  [[ " ${steps[*]} " != *" images "* ]] || more+=(dist/coracle-image.tar dist/images-examples/guestbook.tar)
  tar -cf "$folder/files.tar" -C "$PWD" --transform "s,^$images/,images/," --transform 's,^dist/,,' \
    --transform 's,^manifests/,,' --transform 's,^hack/machine/,,' \
    "$deb" "${more[@]}" $images/*.tar manifests/examples hack/machine/steps.sh
}
boot() { # returns when the machine serves
  "${machine[@]}" -m "${MEMORY:-2048}" -smp "${PROCESSORS:-2}" -display none -monitor none \
    -kernel "$folder/kernel" -initrd "$folder/initrd" -append "root=/dev/vda rw console=$console quiet" \
    -drive "file=$folder/run.qcow2,if=virtio,format=qcow2" \
    -drive "file=$folder/files.tar,if=virtio,format=raw,readonly=on" \
    -serial "file:$folder/console.log" -device virtio-rng-pci \
    -netdev "user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:$port-10.0.2.15:22" -device virtio-net-pci,netdev=n &
  qemu=$!
  served 1
}
served() { # N: waits until the machine has booted for the Nth time
  local seen
  seen=$(timeout 600 tail -n +1 -f "$folder/console.log" --pid $qemu 2>/dev/null | grep -m "$1" -c 'the machine serves')
  [ "$seen" = "$1" ] || { echo "the machine did not boot: see $folder/console.log" >&2; return 1; }
}
guest() {
  ssh -q -i "$folder/key" -p $port -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=30 \
    root@127.0.0.1 "$@"
}
plug() { # the machine loses what is only in its memory
  kill -9 $qemu
  wait $qemu 2>/dev/null
  : >"$folder/console.log"
  boot
}
cuts() { # pulls the plug $CUTS times at a random moment of the first half minute of acknowledged writes
  for n in $(seq "$CUTS"); do
    guest "bash coracle/steps.sh writes $n" </dev/null >"$folder/written.log" 2>/dev/null &
    local writer=$!
    timeout 120 tail -n +1 -F "$folder/written.log" --pid $writer 2>/dev/null | grep -q -m 1 '^configmap'
    sleep $((RANDOM % 30))
    plug || return 1
    wait $writer
    echo "cut $n of $CUTS"
    guest "bash coracle/steps.sh kept $n" <"$folder/written.log" || return 1
  done
}
step() { # STEP
  case $1 in
  cuts) cuts ;;
  reboot)
    guest systemctl reboot
    served 2
    ;;
  power) # the plug: what was only in the machine's memory is lost
    guest "bash coracle/steps.sh rebooted"
    plug
    ;;
  *) guest "bash coracle/steps.sh $1" ;;
  esac
}

status=0
for suite in "${suites[@]}"; do
  folder=dist/machine/$suite
  choose "$suite" || { status=1; continue; }
  hack/machine/root.sh "$suite" "$folder" || { status=1; continue; }
  rm -f "$folder"/*.log "$folder/run.qcow2"
  qemu-img create -q -f qcow2 -F raw -b disk.img "$folder/run.qcow2"
  port=$((20000 + $$ % 10000))
  echo "$suite: booting"
  : >"$folder/console.log"
  failed=
  if pack && boot && guest 'mkdir -p coracle && tar -xf /dev/vdb -C coracle'; then
    echo "$suite: kernel $(guest uname -r)"
    for name in "${steps[@]}"; do
      begin=$SECONDS
      if step "$name" >"$folder/$name.log" 2>&1; then
        printf '%s: %-11s ok    %4d s\n' "$suite" "$name" $((SECONDS - begin))
      else
        printf '%s: %-11s FAILED %3d s: %s\n' "$suite" "$name" $((SECONDS - begin)) "$(tail -n 1 "$folder/$name.log")"
        guest "bash coracle/steps.sh journal" >"$folder/journal.log" 2>&1
        failed=$name
        break
      fi
    done
  else
    failed=boot
  fi
  kill -9 $qemu 2>/dev/null
  wait $qemu 2>/dev/null
  if [ -n "$failed" ]; then status=1; else rm -f "$folder/run.qcow2" "$folder/files.tar"; fi
done
exit $status
