#!/usr/bin/env bash
# Proves both commands on a machine that has never seen nibble: clones this repository's HEAD into a
# fresh Debian or Ubuntu (debootstrap), runs `make serve` there until the server answers, asks it a
# question, then runs `make test`. As root.
#
# usage: tools/clean_room.sh [SUITE MIRROR]
#   default: bookworm (Debian 12) from the mirror that this machine's apt uses
#   noble MIRROR: Ubuntu 24.04; MIRROR is what its apt sources name
# ROOM=DIRECTORY keeps the system there, and goes on with one that is; else it is a temporary one.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $EUID == 0 ]] || { echo "clean_room: run this as root" >&2; exit 1; }
command -v debootstrap >/dev/null || apt-get -qq install -y --no-install-recommends debootstrap

suite=${1:-bookworm}
mirror=${2:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $suite" | head -1)}
[[ -n $mirror ]] || { echo "clean_room: name a mirror of $suite: this machine's apt knows none" >&2; exit 1; }
room=${ROOM:-$(mktemp -d)}
log=$(mktemp)
port=18765

in_room=(chroot "$room" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin)
server=  # leads a process group of its own
stop_server() {
  [[ -z $server ]] || kill -- "-$server" 2>/dev/null || true
  [[ -z $server ]] || wait "$server" || true
  server=
}
leave() {
  stop_server
  for mount in dev/pts proc; do
    ! mountpoint -q "$room/$mount" || umount "$room/$mount"
  done
  rm -f "$log"
  [[ -n ${ROOM:-} ]] || rm -rf --one-file-system "$room"
}
trap leave EXIT

echo "== $suite in $room"
scripts=/usr/share/debootstrap/scripts
script=$scripts/$suite
[[ -e $script ]] || script=$scripts/gutsy  # of all Ubuntus; an older debootstrap knows no newer name
components=main
[[ $(readlink -f "$script") != */gutsy ]] || components=main,universe
[[ -e $room/etc/debian_version ]] ||
  debootstrap --variant=minbase --components=$components --include=git,make,ca-certificates \
    "$suite" "$room" "$mirror" "$script" >"$log" || { tail -20 "$log"; exit 1; }
mount -t proc proc "$room/proc"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$room/dev/pts"  # a test types at a terminal
# The machine's own way to its registries: resolver, certificates, pip's settings.
cp /etc/resolv.conf /etc/hosts "$room/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$room/etc/ssl/certs/"
for file in /etc/pip.conf /etc/apt/apt.conf.d/99*; do
  [[ ! -e $file ]] || cp --parents "$file" "$room"
done
rm -rf "$room/root/nibble"
git clone -q --no-hardlinks . "$room/root/nibble"

echo "== make serve"
start=$SECONDS
setsid "${in_room[@]}" make -C /root/nibble serve PORT=$port ARGS='--device cpu' </dev/null >"$room/serve.log" 2>&1 &
server=$!
until curl -fs "http://127.0.0.1:$port/health" >/dev/null; do
  kill -0 "$server" 2>/dev/null || { tail -30 "$room/serve.log"; exit 1; }
  sleep 1
done
echo "the server answers after $((SECONDS - start)) s"
curl -fsS "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages":[{"role":"user","content":"What is 12 + 30?"}],"temperature":0}' | tee "$room/answer.json"
echo
grep -q 42 "$room/answer.json"
stop_server

echo "== make test"
start=$SECONDS
"${in_room[@]}" make -C /root/nibble test </dev/null 2>&1 | tail -15
echo "clean_room: both commands work; make test took $((SECONDS - start)) s"
