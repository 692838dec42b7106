#!/usr/bin/env bash
# What tools/package_test.sh runs in the fresh system: /root/nibble.deb, its service and its removal.
set -Eeuo pipefail
trap 'echo "failed at line $LINENO"; journalctl -u nibble --no-pager | tail -20' ERR

say() { echo "ok: $*"; }
configure() { printf '%s\n' "$@" 'ARGS=--port 18766 --device cpu' >/etc/nibble.env; }
answers() {
  curl -fsS http://127.0.0.1:18766/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What is 12 + 30?"}],"temperature":0}' | grep -q '= 42'
}
serves() { curl -fsS http://127.0.0.1:18766/v1/models | grep -q "\"id\":\"$1\""; }
runs_as() { [[ $(stat -c %U "/proc/$(systemctl show -P MainPID nibble)") == "$1" ]]; }
# The small model as repo $2 in the cache under home $1.
cache() {
  local at=$1/.cache/huggingface/hub/models--${2/\//--}
  mkdir -p "$at/refs" "$at/snapshots"
  cp -r /usr/share/nibble/models/nibble-tiny-gpt-oss "$at/snapshots/0123"
  printf 0123 >"$at/refs/main"
}

package=$(dpkg-deb -f /root/nibble.deb Package)
# What an earlier run has left in a room that is kept.
dpkg -P nibble nibble-h200 nibble-spark >/dev/null 2>&1 || true
userdel -r ana 2>/dev/null || true
rm -rf /var/lib/nibble /etc/systemd/system/nibble.service.d
systemctl daemon-reload

ip link set lo up 2>/dev/null || true
dpkg -i /root/nibble.deb
nibble --version
[[ $(systemctl is-enabled nibble || true) == disabled && $(systemctl is-active nibble || true) == inactive ]]
[[ $(stat -c '%a %U' /etc/nibble.env) == '600 root' ]]
systemd-analyze verify nibble.service
say 'installs, starts nothing by itself'

systemctl start nibble  # comes back when the model is loaded
nibble_at_8000=$(curl -fsS http://127.0.0.1:8000/v1/models)
grep -q nibble-tiny-gpt-oss <<<"$nibble_at_8000"
runs_as nibble
say 'serves the small model without configuration, as user nibble'

configure MODEL=example/own
cache /var/lib/nibble example/own
chown -R nibble: /var/lib/nibble
systemctl restart nibble
serves example/own
answers
say "serves a model of its own cache"

useradd --create-home ana
chmod 700 /home/ana
cache /home/ana example/anas
chown -R ana: /home/ana
configure MODEL=example/anas
mkdir -p /etc/systemd/system/nibble.service.d
printf '[Service]\nUser=ana\n' >/etc/systemd/system/nibble.service.d/override.conf
systemctl daemon-reload
systemctl restart nibble
serves example/anas
answers
runs_as ana
say "serves a model of ana's cache as ana, whose home nobody else reads"

before=$(systemctl show -P MainPID nibble)
dpkg -i /root/nibble.deb
for _ in $(seq 60); do
  [[ $(systemctl show -P MainPID nibble) == "$before" || $(systemctl is-active nibble) != active ]] || break
  sleep 1
done
serves example/anas
[[ $(systemctl show -P MainPID nibble) != "$before" ]]
say 'an upgrade keeps the configuration and goes on with the new program'

dpkg -r "$package"
[[ $(systemctl is-active nibble || true) != active && -e /etc/nibble.env && ! -e /usr/bin/nibble ]]
dpkg -P "$package" | tee /tmp/purged
grep -q 'models are left in /var/lib/nibble' /tmp/purged
[[ ! -e /etc/nibble.env && ! -e /usr/share/nibble && -d /var/lib/nibble/.cache ]]
say 'removal stops the service; a purge leaves the models that it has pulled'
echo 'all of it'
