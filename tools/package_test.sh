#!/usr/bin/env bash
# Tries the packages of a preset (build/packages) on a machine that has never seen nibble: a fresh
# Debian or Ubuntu, booted with its own systemd. The service serves the small model, then one from its
# user's cache, then one from somebody's own; survives an upgrade, goes with the package. The tarball
# serves from an empty folder. Packages for arm64 are only unpacked and emulated. As root.
#
# usage: tools/package_test.sh PRESET [SUITE MIRROR]     bookworm (Debian 12); noble MIRROR: Ubuntu 24.04
# ROOM=DIRECTORY keeps the system there, and goes on with one that is; else it is a temporary one.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?the preset} suite=${2:-bookworm} mirror=${3:-http://deb.debian.org/debian}
[[ $EUID == 0 ]] || { echo "package_test: run this as root" >&2; exit 1; }
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "build/$preset/CMakeCache.txt")
name=nibble machine=x86_64 architecture=amd64 run=()
[[ $preset == cpu || $preset == arm64 ]] || name=nibble-$preset
if readelf -h "build/$preset/nibble" | grep -q AArch64; then machine=aarch64 architecture=arm64; fi
deb=$PWD/build/packages/${name}_${version}_$architecture.deb
tarball=$PWD/build/packages/$name-$version-$machine.tar.gz
port=18766
folder=$(mktemp -d) server=
room=${ROOM:-$folder/room}
leave() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf --one-file-system "$folder"
}
trap leave EXIT

ask() {
  curl -fsS "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What is 12 + 30?"}],"temperature":0}' | grep -q '= 42'
}

# serve_from COMMAND...: the tarball's program answers, from a folder with nothing else in it.
try_tarball() {
  mkdir "$folder/tar"
  tar -xzf "$tarball" -C "$folder/tar"
  [[ $machine == "$(uname -m)" ]] || run=(qemu-aarch64-static -L /usr/aarch64-linux-gnu)
  (cd / && exec env -i PATH=/usr/bin:/bin "${run[@]}" "$folder/tar/bin/nibble" serve \
    --port $port --device cpu 2>"$folder/log") &
  server=$!
  until curl -fs "http://127.0.0.1:$port/health" >/dev/null; do
    kill -0 $server 2>/dev/null || { cat "$folder/log"; exit 1; }
    sleep 1
  done
  ask || { cat "$folder/log"; exit 1; }
  kill $server
  wait $server
  server=
  echo "ok: $(basename "$tarball") serves from an empty folder${run:+, emulated}"
}

make_room() {
  local script=/usr/share/debootstrap/scripts/$suite
  [[ -e $script ]] || script=${script%/*}/gutsy  # of all Ubuntus; an older debootstrap knows no newer name
  [[ -e $room/etc/debian_version ]] || debootstrap --variant=minbase \
    --include=systemd,systemd-sysv,dbus,adduser,curl,ca-certificates "$suite" "$room" \
    "$mirror" "$script" >"$folder/log" || { tail "$folder/log"; exit 1; }
  cp "$deb" "$room/root/nibble.deb"
  cp tools/package_test_room.sh "$room/root/check.sh"
  cat >"$room/etc/systemd/system/check.service" <<'END'
[Service]
Type=oneshot
ExecStart=/bin/bash /root/check.sh
ExecStopPost=systemctl --no-block poweroff
StandardOutput=append:/root/check.log
StandardError=append:/root/check.log
[Install]
WantedBy=multi-user.target
END
  systemctl --root="$room" --quiet enable check.service
  rm -f "$room/root/check.log"
}

try_deb() {
  if [[ $machine != "$(uname -m)" ]]; then
    dpkg-deb --info "$deb" control | grep -qx 'Architecture: arm64'
    dpkg-deb -x "$deb" "$folder/deb"
    cmp "$folder/deb/usr/bin/nibble" "$folder/tar/bin/nibble"
    echo "ok: $(basename "$deb") holds the same program; not installed: this is no arm64"
    return
  fi
  make_room
  # No network but its own loopback: what the package needs is there, or it fails.
  timeout 600 systemd-nspawn --quiet --boot --private-network --register=no --keep-unit \
    --directory="$room" </dev/null >"$folder/log" 2>&1 || true
  grep '^ok:' "$room/root/check.log" || true
  tail -1 "$room/root/check.log" | grep -qx 'all of it' || { tail -n 40 "$folder/log" "$room/root/check.log"; exit 1; }
}

try_tarball
try_deb
echo "package_test: the packages of $preset work"
