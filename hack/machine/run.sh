#!/usr/bin/env bash
# Tries the release's package on virtual machines with Debian as it is installed: hack/machine/run.sh [SUITE...]. Each
# machine boots from a fresh copy of its disk and goes through the steps of steps.sh. The report has the seconds of each
# step; logs are in dist/machine/SUITE. QEMU emulates the processor, which takes some fifteen minutes a machine;
# MACHINE_ACCEL=kvm uses the real one. CUTS is how often the power is cut during writes, image loads and pod starts
# (default 3, a minute and a half each). STEPS names some of the steps; MEMORY, in MiB, and PROCESSORS make a smaller
# machine.
set -uo pipefail
cd "$(dirname "$0")/../.."
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
if ! command -v qemu-system-x86_64 >/dev/null; then
  echo "QEMU is missing: apt-get install qemu-system-x86 qemu-utils mmdebstrap" >&2
  exit 1
fi
deb=$(echo dist/coracle_*_amd64.deb)
[ -e "$deb" ] || { echo "dist has no package: run make release" >&2; exit 1; }
steps=(${STEPS:-before install hello pods network claim systems limits swap apparmor firewall nested kill restart upgrade reboot rebooted power rebooted cuts clock purge})
qemu=
CUTS=${CUTS:-3}

boot() { # SUITE FOLDER: returns when the machine serves
  qemu-system-x86_64 -accel "${MACHINE_ACCEL:-tcg,thread=multi}" -cpu max -m "${MEMORY:-2048}" -smp "${PROCESSORS:-2}" -display none -monitor none \
    -kernel "$2/kernel" -initrd "$2/initrd" -append "root=/dev/vda rw console=ttyS0 quiet" \
    -drive "file=$2/run.qcow2,if=virtio,format=qcow2" -serial "file:$2/console.log" \
    -netdev "user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:$port-10.0.2.15:22" -device virtio-net-pci,netdev=n &
  qemu=$!
  served "$2" 1
}
served() { # FOLDER N: waits until the machine has booted for the Nth time
  local seen
  seen=$(timeout 300 tail -n +1 -f "$1/console.log" --pid $qemu 2>/dev/null | grep -m "$2" -c 'the machine serves')
  [ "$seen" = "$2" ] || { echo "the machine did not boot: see $1/console.log" >&2; return 1; }
}
guest() {
  ssh -q -i "$folder/key" -p $port -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=30 \
    root@127.0.0.1 "$@"
}
copy() {
  tar -cf - -C "$PWD" --transform 's,^dist/,,' --transform 's,^manifests/,,' --transform 's,^hack/machine/,,' \
    "$deb" dist/coracle-image.tar dist/images/*.tar manifests/examples hack/machine/steps.sh |
    guest 'mkdir -p coracle && tar -xf - -C coracle'
}
plug() { # SUITE: the machine loses what is only in its memory
  kill -9 $qemu
  wait $qemu 2>/dev/null
  : >"$folder/console.log"
  boot "$1" "$folder"
}
cuts() { # SUITE: pulls the plug $CUTS times at a random moment of the first half minute of acknowledged writes
  for n in $(seq "$CUTS"); do
    guest "bash coracle/steps.sh writes $n" </dev/null >"$folder/written.log" 2>/dev/null &
    local writer=$!
    timeout 120 tail -n +1 -F "$folder/written.log" --pid $writer 2>/dev/null | grep -q -m 1 '^configmap'
    sleep $((RANDOM % 30))
    plug "$1" || return 1
    wait $writer
    echo "cut $n of $CUTS"
    guest "bash coracle/steps.sh kept $n" <"$folder/written.log" || return 1
  done
}
step() { # SUITE STEP
  case $2 in
  cuts) cuts "$1" ;;
  reboot)
    guest systemctl reboot
    served "$folder" 2
    ;;
  power) # the plug: what was only in the machine's memory is lost
    guest "bash coracle/steps.sh rebooted"
    plug "$1"
    ;;
  *) guest "bash coracle/steps.sh $2" ;;
  esac
}

status=0
for suite in "${suites[@]}"; do
  folder=dist/machine/$suite
  hack/machine/root.sh "$suite" "$folder" || { status=1; continue; }
  rm -f "$folder"/*.log "$folder/run.qcow2"
  qemu-img create -q -f qcow2 -F raw -b disk.img "$folder/run.qcow2"
  port=$((20000 + $$ % 10000))
  echo "$suite: booting"
  : >"$folder/console.log"
  failed=
  if boot "$suite" "$folder" && copy; then
    echo "$suite: kernel $(guest uname -r)"
    for name in "${steps[@]}"; do
      begin=$SECONDS
      if step "$suite" "$name" >"$folder/$name.log" 2>&1; then
        printf '%s: %-9s ok    %4d s\n' "$suite" "$name" $((SECONDS - begin))
      else
        printf '%s: %-9s FAILED %3d s: %s\n' "$suite" "$name" $((SECONDS - begin)) "$(tail -n 1 "$folder/$name.log")"
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
  if [ -n "$failed" ]; then status=1; else rm -f "$folder/run.qcow2"; fi
done
exit $status
