#!/usr/bin/env bash
# Runs what was built for a GPU, on the machine that has it: it needs tools/ and BUILD, tests also
# models/ and tests/goldens/, where they lay when those were built.
#
# usage: tools/gpu_run.sh test BUILD             every nibble_*_gpu_test of BUILD
#        tools/gpu_run.sh sanitize BUILD         the same on small shapes under compute-sanitizer:
#                                                memcheck, racecheck, initcheck, synccheck
#        tools/gpu_run.sh bench BUILD RESULTS    the table of gpt-oss-120b, random weights, what a
#                                                step is made of and each kernel alone, as JSON in
#                                                RESULTS; NIBBLE_BENCH_ARGS: further flags
#        tools/gpu_run.sh load BUILD RESULTS     the same shape as a checkpoint of 65 GB in LOAD_AT
#                                                (/dev/shm), loaded; needs python3 with numpy
#        tools/gpu_run.sh soak BUILD RESULTS     8 minutes of preemption under --exact on the same
#                                                model; SOAK_MINUTES
set -euo pipefail
what=${1:?test, sanitize, bench, load or soak} build=${2:?the folder with the programs}

run_tests() {
  local failed=0 program
  for program in "$build"/nibble_*_gpu_test; do
    echo "== ${program##*/}"
    "$program" --gtest_brief=1 || failed=1
  done
  return $failed
}

# API errors are left out: tests provoke some. Racecheck follows barriers at which one lane arrives
# for its warp only if told so. NIBBLE_SMALL_TESTS: the most activations of a case.
run_sanitizer() {
  local failed=0 program tool
  for tool in memcheck racecheck initcheck synccheck; do
    export NIBBLE_SMALL_TESTS=$([[ $tool == racecheck ]] && echo 720 || echo 2800)
    for program in "$build"/nibble_*_gpu_test; do
      echo "== $tool ${program##*/}"
      compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 --print-limit 10 \
        $([[ $tool == racecheck ]] && echo --racecheck-indirect-barrier-dependency) \
        "$program" --gtest_brief=1 || failed=1
    done
  done
  return $failed
}

# One result. $1: a name for the file, the rest: arguments of nibble.
result() {
  local file
  file=$results/$(date -u +%F)-$device-gpt-oss-120b-$1.json
  shift
  "$build/nibble" "$@" --json >"$file.part" && mv "$file.part" "$file" && echo "$file"
}

# Batches between the usual sizes must not be slower than the next smaller one. 130,816: 131,072
# tokens, the longest context, less 256 for what follows. A result that fails does not end the rest.
run_bench() {
  local model=(openai/gpt-oss-120b --load-format dummy) mxfp4=(--dense-format mxfp4) failed=0
  local args=() fp8=() rows=() test
  read -ra args <<<"${NIBBLE_BENCH_ARGS:-}"
  tests() { rows=() && for test in "$@"; do rows+=(--test "$test"); done; }
  run() { result "$1" bench "${model[@]}" "${@:2}" "${rows[@]}" "${args[@]}" || failed=1; }
  case $device in h[12]00) fp8=(--activations fp8) ;; esac  # Hopper alone has kernels for E4M3
  tests 'tg 1 @512' 'tg 1 @8192' 'tg 4' 'tg 5' 'tg 8' 'tg 12' 'tg 16' 'tg 32' 'tg 48' 'tg 64' \
    'tg 100' 'tg 128' 'tg 256' pp512 pp2048 pp8192
  run mxfp4-dense -n 128 -r 3 --max-num-seqs 256 "${mxfp4[@]}"
  tests 'tg 1 @512' 'tg 1 @8192' 'tg 8' 'tg 64' pp2048 pp8192
  run bf16-dense -n 128 -r 3 --max-num-seqs 64
  tests pp512 pp2048 pp8192
  [[ ${#fp8[@]} == 0 ]] || run mxfp4-dense-fp8 -r 3 "${mxfp4[@]}" "${fp8[@]}"
  tests 'tg 1 @512' 'tg 8' 'tg 64' 'tg 256' pp512 pp8192
  run profile -n 128 -r 1 --profile --max-num-seqs 256 "${mxfp4[@]}"
  tests pp512 pp8192
  [[ ${#fp8[@]} == 0 ]] || run profile-fp8 -r 1 --profile "${mxfp4[@]}" "${fp8[@]}"
  tests 'tg 1 @130816' pp130816
  run 130816-mxfp4-dense -n 128 -r 1 "${mxfp4[@]}"
  result ops bench ops openai/gpt-oss-120b || failed=1
  return $failed
}

# Bytes and what they took are in the results, what plain reads take is printed.
run_load() {
  local at=${LOAD_AT:-/dev/shm}/nibble-random-120b failed=0
  local args=(--max-num-seqs 4 --max-model-len 4096 -n 128 -r 1 --test 'tg 1 @512' --test pp512)
  python3 "$(dirname "$0")/../bench/random_checkpoint.py" "$at" --read || return
  result load-mxfp4-dense bench "$at" --dense-format mxfp4 "${args[@]}" || failed=1
  result load-bf16-dense bench "$at" "${args[@]}" || failed=1
  rm -r "$at"
  return $failed
}

run_soak() {
  result preempt bench preempt openai/gpt-oss-120b --load-format dummy --dense-format mxfp4 \
    --max-num-seqs 64 --clients 95 --max-model-len 5120 --kv-tokens 135000 --pool 32 \
    --no-enable-prefix-caching --minutes "${SOAK_MINUTES:-8}"
}

case $what in
  test) run_tests ;;
  sanitize) run_sanitizer ;;
  bench | load | soak)
    results=${3:?the folder for the results}
    mkdir -p "$results"
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 |
      sed 's/^NVIDIA //; s/ .*//' | tr '[:upper:]' '[:lower:]')
    "run_$what"
    ;;
  *) echo "gpu_run: test, sanitize, bench, load or soak, not $what" >&2; exit 2 ;;
esac
