#!/usr/bin/env bash
# Runs what the DGX Spark's program can do without its GPU: on arm64 as it is, elsewhere emulated.
#
# usage: tools/run_spark.sh NIBBLE
set -euo pipefail
nibble=${1:?the program}
run=()
[[ $(uname -m) == aarch64 ]] || run=(qemu-aarch64-static -L /usr/aarch64-linux-gnu)

# Says what was run; fails where the program fails or does not print WANT.
expect() {
  local want=$1 text
  shift
  text=$("${run[@]}" "$nibble" "$@" 2>&1) || { echo "$text" >&2; return 1; }
  grep -q -- "$want" <<<"$text" || { echo "$text"; echo "no '$want' from nibble $*" >&2; return 1; }
  echo "ok: nibble $*"
}
expect 'preset spark' --version
expect 'GB10' plan openai/gpt-oss-120b --device gb10 --dense-format mxfp4
expect 'cuda_w4a16_decode' doctor openai/gpt-oss-120b --device gb10 --dense-format mxfp4
