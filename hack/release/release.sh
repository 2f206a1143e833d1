#!/usr/bin/env bash
# Packs the programs for amd64 and arm64, bin/coracle and bin/ARCH/coracle, as a release: hack/release/release.sh. It
# writes into dist a static archive and a Debian package with systemd units for each, and for both the install script,
# an image, and SHA256SUMS, which covers the bills of materials too. The same sources give the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=hack/release
version=$(sed -n 's/.*Coracle = "v\(.*\)"/\1/p' pkg/base/version/version.go)
host=$(go env GOHOSTARCH)
epoch=${SOURCE_DATE_EPOCH:-$(git show -s --format=%ct HEAD)}
export SOURCE_DATE_EPOCH=$epoch # dpkg-deb reads it
case $(bin/coracle version) in "coracle v$version "*) ;; *) echo "bin/coracle is not v$version: run make build" >&2; exit 1 ;; esac
git diff --quiet HEAD -- || echo "warning: the tree has changes that are not committed" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -f dist/coracle[-_]*.tar.gz dist/coracle_*.deb dist/SHA256SUMS dist/install.sh

files=() programs=()
for arch in amd64 arm64; do
  program=bin/$arch/coracle
  [ "$arch" != "$host" ] || program=bin/coracle
  programs+=("$program")
  top=coracle-v$version-linux-$arch
  mkdir "$work/$top"
  install -m 0755 "$program" "$work/$top/coracle"
  install -m 0644 LICENSE README.md $here/coracle-server.service $here/coracle-agent.service "$work/$top"
  tar -C "$work" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$top" | gzip -6n >"dist/$top.tar.gz"

  deb=$work/deb-$arch
  install -D -m 0755 "$program" "$deb/usr/bin/coracle"
  for role in server agent; do
    mkdir -p "$deb/usr/lib/systemd/system"
    sed 's|^ExecStart=.*/coracle |ExecStart=/usr/bin/coracle |' $here/coracle-$role.service >"$deb/usr/lib/systemd/system/coracle-$role.service"
  done
  # Like other packages that delay shutdowns: a file below /usr/lib is removed with the package, a file in /etc is not.
  install -D -m 0644 $here/logind.conf "$deb/usr/lib/systemd/logind.conf.d/coracle.conf"
  doc=$deb/usr/share/doc/coracle
  install -D -m 0644 $here/copyright "$doc/copyright"
  install -D -m 0644 README.md "$doc/README.md"
  install -D -m 0644 $here/lintian-overrides "$deb/usr/share/lintian/overrides/coracle"
  {
    printf 'coracle (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of this release.\n\n' "$version"
    printf ' -- Coracle maintainers <maintainers@coracle.dev>  %s\n' "$(date -u -R -d "@$epoch")"
  } | gzip -9n >"$doc/changelog.gz"
  mkdir -p "$deb/usr/share/man/man1"
  $here/man.sh bin/coracle "$version" "@$epoch" | gzip -9n >"$deb/usr/share/man/man1/coracle.1.gz"
  while read -r shell file; do
    mkdir -p "$deb/usr/share/${file%/*}"
    bin/coracle completion "$shell" >"$deb/usr/share/$file"
  done <<END
bash bash-completion/completions/coracle
zsh zsh/vendor-completions/_coracle
fish fish/vendor_completions.d/coracle.fish
END
  find "$deb" -type d -exec chmod 0755 {} +
  find "$deb/usr/lib" "$deb/usr/share" -type f -exec chmod 0644 {} +
  size=$(du -k --apparent-size -s "$deb" | cut -f1)
  mkdir -m 0755 "$deb/DEBIAN"
  install -m 0755 $here/debian/* "$deb/DEBIAN"
  cat >"$deb/DEBIAN/control" <<END
Package: coracle
Version: $version
Architecture: $arch
Maintainer: Coracle maintainers <maintainers@coracle.dev>
Installed-Size: $size
Recommends: ca-certificates
Section: admin
Priority: optional
Description: Kubernetes small enough to carry
 One static binary is the Kubernetes control plane with etcd inside, the
 node agent with containerd inside, and kubectl. The package brings systemd
 units for a server and for an agent, and starts neither.
END
  (cd "$deb" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | LC_ALL=C sort | xargs -r md5sum >DEBIAN/md5sums && chmod 0644 DEBIAN/md5sums DEBIAN/control)
  find "$deb" -exec touch -h -d "@$epoch" {} +
  # gzip: every dpkg reads it, and it takes seconds where xz takes a minute.
  dpkg-deb --root-owner-group -Zgzip -z6 --build "$deb" "dist/coracle_${version}_$arch.deb" >/dev/null
  files+=("$top.tar.gz" "coracle_${version}_$arch.deb")
done

CGO_ENABLED=0 go run -trimpath ./hack/images/coracle dist/coracle-image.tar "${programs[@]}"
install -m 0755 $here/install.sh dist/install.sh
files+=(coracle.cdx.json coracle-arm64.cdx.json coracle-image.tar install.sh)
(cd dist && sha256sum "${files[@]}" >SHA256SUMS && ls -l "${files[@]}" SHA256SUMS)
