#!/usr/bin/env bash
# Packs build/PRESET/nibble, after `make build PRESET=...`: a .deb and a tarball, to be unpacked into
# /usr/local; of one program always the same bytes.
#
# usage: tools/package.sh PRESET [FOLDER]     cpu, arm64, h200 or spark; into build/packages
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?the preset}
out=${2:-$PWD/build/packages}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
umask 022
# The times that dpkg-deb writes too.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

nibble=build/$preset/nibble
[[ -x $nibble ]] || { echo "package: no $nibble; make build PRESET=$preset" >&2; exit 1; }
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "build/$preset/CMakeCache.txt")
case $(readelf -h "$nibble" | sed -n 's/^ *Machine: *//p') in
  *X86-64) architecture=amd64 machine=x86_64 ;;
  AArch64) architecture=arm64 machine=aarch64 ;;
  *) echo "package: $nibble is for no machine that packages are made for" >&2; exit 1 ;;
esac
name=nibble device='plain CPUs'
case $preset in
  h200) name=nibble-h200 device='Hopper GPUs (H200, H100) and plain CPUs' ;;
  spark) name=nibble-spark device='the DGX Spark (GB10) and plain CPUs' ;;
esac

# What the program needs, read from itself: parts of glibc, from the version on that it names last.
libc=$(readelf -VW "$nibble" | grep -o 'GLIBC_2\.[0-9.]*' | sort -uV | tail -1)
foreign=$(readelf -dW "$nibble" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -vE '^(libc|libm|libdl|librt|libpthread)\.so\.|^ld-linux' || true)
[[ -z $foreign ]] || { echo "package: $nibble needs $foreign, which no package is named for" >&2; exit 1; }

install_to() { DESTDIR=$1 cmake --install "build/$preset" --strip --prefix "$2" >/dev/null; }
# Puts the files of folder $1 into archive $2, always in the same order and as root's.
pack() {
  tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c . |
    gzip -6n >"$2"
}

package_deb() {
  local root=$stage/deb conflicts=
  install_to "$root" /usr
  rm -r "$root/usr/lib/sysusers.d"  # postinst makes the user
  install -D -m 0600 packaging/nibble.env "$root/etc/nibble.env"
  [[ $name == nibble ]] || conflicts="Provides: nibble\nConflicts: nibble\nReplaces: nibble\n"
  install -d "$root/DEBIAN"
  install -m 0755 packaging/debian/{postinst,prerm,postrm} "$root/DEBIAN"
  echo /etc/nibble.env >"$root/DEBIAN/conffiles"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  sed -e "s/@name@/$name/; s/@version@/$version/; s/@architecture@/$architecture/" \
    -e "s/@size@/$(du -sk --apparent-size "$root/usr" | cut -f1)/; s/@libc@/${libc#GLIBC_}/" \
    -e "s/@conflicts@/$conflicts/; s/@device@/$device/" \
    packaging/debian/control.in >"$root/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$root" "$out/${name}_${version}_$architecture.deb"
}

package_tarball() {
  install_to "$stage/tar" /usr/local
  pack "$stage/tar/usr/local" "$out/$name-$version-$machine.tar.gz"
  echo "package: $out/$name-$version-$machine.tar.gz"
}

mkdir -p "$out"
if command -v dpkg-deb >/dev/null; then package_deb; else echo "package: no dpkg-deb, so no .deb" >&2; fi
package_tarball
