#!/bin/sh
# Installs Coracle from an archive of a release, or removes it. It has no default host: give the archive or the release.
#
#   install.sh ARCHIVE           a file or an https:// URL of coracle-VERSION-linux-ARCH.tar.gz
#   install.sh RELEASE/          a folder or an https:// URL with SHA256SUMS and the archives: it chooses this machine's
#   install.sh --uninstall       removes the installed files; with a cluster in /var/lib/coracle it needs one of:
#   --delete-data                deletes the cluster
#   --keep-data                  stops the cluster and leaves its data
#
#   --sha256 SUM                 the archive's checksum; default from SHA256SUMS beside the archive
#   --prefix DIR                 where bin/coracle goes (default /usr/local)
#   --root DIR                   install into another root directory
#
# It may be run again: the same archive changes nothing; another archive replaces the program atomically and
# restarts running services.
set -eu
prefix=/usr/local root='' sum='' archive='' uninstall='' data=''
fail() { echo "install.sh: $*" >&2; exit 1; }
usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; }
while [ $# -gt 0 ]; do
  case $1 in
  --sha256) [ $# -ge 2 ] || fail "--sha256 needs a checksum"; sum=$2; shift ;;
  --prefix) [ $# -ge 2 ] || fail "--prefix needs a directory"; prefix=${2%/}; shift ;;
  --root) [ $# -ge 2 ] || fail "--root needs a directory"; root=${2%/}; shift ;;
  --uninstall) uninstall=yes ;;
  --keep-data | --delete-data) data=${1#--} ;;
  -h | --help) usage; exit ;;
  -*) fail "unknown option $1 (see --help)" ;;
  *) [ -z "$archive" ] || fail "one archive, please: $archive or $1"; archive=$1 ;;
  esac
  shift
done
case $prefix in /*) ;; *) fail "--prefix must be an absolute path" ;; esac
[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "needs root: run it with sudo"

bin=$root$prefix/bin/coracle units=$root/etc/systemd/system
systemd() { [ -z "$root" ] && [ -d /run/systemd/system ] && command -v systemctl >/dev/null; }

if [ -n "$uninstall" ]; then
  [ -z "$archive" ] || fail "--uninstall takes no archive"
  # Only the program can remove a cluster's mounts, links and tables.
  [ ! -e "$root/var/lib/coracle/node-name" ] || [ -n "$data" ] ||
    fail "/var/lib/coracle has a cluster: add --delete-data to delete it, or --keep-data to leave it"
  # End the pods while the program is still installed.
  if systemd; then
    for role in server agent; do
      if systemctl is-active -q "coracle-$role"; then "$bin" stop || true; fi
      systemctl disable --now -q "coracle-$role" 2>/dev/null || true
    done
  elif [ -z "$root" ] && [ -x "$bin" ] && "$bin" status >/dev/null 2>&1; then
    "$bin" stop || fail "the cluster on this machine could not be stopped"
  fi
  if [ "$data" = delete-data ] && [ -z "$root" ]; then "$bin" delete || fail "the cluster could not be deleted"; fi
  rm -f "$bin" "$units/coracle-server.service" "$units/coracle-agent.service"
  if systemd; then
    systemctl daemon-reload
    # As a purge of the package: systemd disables controllers of the root cgroup that no unit uses any more.
    if [ "$data" = delete-data ]; then systemd-run --quiet --wait --property=Delegate=yes true || true; fi
  fi
  echo "Coracle is removed."
  if [ -d "$root/var/lib/coracle" ]; then echo "Data of a cluster is still in $root/var/lib/coracle."; fi
  exit
fi

[ -n "$archive" ] || { usage >&2; exit 1; }
for tool in tar sha256sum; do command -v $tool >/dev/null || fail "$tool is missing"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
fetch() { # URL or file, to
  case $1 in
  https://*)
    command -v curl >/dev/null || fail "curl is missing: download the archive and SHA256SUMS yourself, and give the file"
    curl -fsSL --proto '=https' --max-filesize 1073741824 --connect-timeout 30 -o "$2" "$1" || fail "could not download $1"
    ;;
  *://*) fail "$1: only https:// and files" ;;
  *) [ -f "$1" ] || fail "$1: no such file"; cp "$1" "$2" ;;
  esac
}
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) fail "there is no release for $(uname -m), only for x86_64 (amd64) and aarch64 (arm64)" ;;
esac
sums() { # of the release, as SUM NAME
  sed -n 's/^\([0-9a-f]\{64\}\) [ *]\(.*\)$/\1 \2/p' "$work/sums"
}
if [ -d "$archive" ]; then archive=${archive%/}/; fi
case $archive in */*) beside=${archive%/*}/SHA256SUMS ;; *) beside=SHA256SUMS ;; esac
if [ "${archive%/}" != "$archive" ]; then
  fetch "$beside" "$work/sums"
  # shellcheck disable=SC2046
  set -- $(sums | while read -r _ f; do case $f in coracle-*-linux-$arch.tar.gz) echo "$f" ;; esac; done)
  [ $# = 1 ] || fail "$beside lists $# archives for linux-$arch, not one: give the archive"
  archive=$archive$1
fi
name=${archive##*/}
case $name in
*-linux-$arch.tar.gz) ;;
*-linux-a??64.tar.gz) fail "$name is not for this machine ($(uname -m)): take the archive for linux-$arch" ;;
esac
fetch "$archive" "$work/archive"
if [ -z "$sum" ]; then
  fetch "$beside" "$work/sums"
  sum=$(sums | while read -r s f; do [ "$f" != "$name" ] || echo "$s"; done)
  [ -n "$sum" ] || fail "$beside does not have the checksum of $name"
fi
echo "$sum  $work/archive" | sha256sum -c --status - || fail "the checksum of $name is wrong: it is damaged, or not what was released"
mkdir "$work/out"
tar -xzf "$work/archive" -C "$work/out" --strip-components=1 --no-same-owner
[ -x "$work/out/coracle" ] || fail "$name holds no coracle"
"$work/out/coracle" version >/dev/null || fail "the program in $name does not run on this machine ($(uname -sm))"

changed=''
place() { # from, to, mode: replaces the file atomically, since its program may be running
  if [ -f "$2" ] && cmp -s "$1" "$2"; then return; fi
  changed=yes
  mkdir -p "${2%/*}"
  cp "$1" "$2.new" && chmod "$3" "$2.new" && mv -f "$2.new" "$2"
}
place "$work/out/coracle" "$bin" 0755
for role in server agent; do
  sed "s|^ExecStart=.*/coracle |ExecStart=$prefix/bin/coracle |" "$work/out/coracle-$role.service" >"$work/unit"
  place "$work/unit" "$units/coracle-$role.service" 0644
done
if [ -z "$changed" ]; then
  echo "$("$bin" version): already installed"
  exit
fi
if systemd; then
  systemctl daemon-reload
  systemctl --no-block try-restart coracle-server coracle-agent
fi
echo "$("$bin" version): installed as $prefix/bin/coracle"
echo "A cluster on this machine:  coracle start     or, as a service:  systemctl enable --now coracle-server"
