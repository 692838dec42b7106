#!/usr/bin/env bash
# Runs what was built for a GPU, on the machine that has it: everything it needs is in two folders.
#
# usage: tools/gpu_run.sh test BUILD             every nibble_*_gpu_test of BUILD
#        tools/gpu_run.sh sanitize BUILD         the same on small shapes under compute-sanitizer:
#                                                memcheck, racecheck, initcheck, synccheck
#        tools/gpu_run.sh bench BUILD RESULTS    the table of gpt-oss-120b, random weights, as JSON
#                                                in RESULTS; NIBBLE_BENCH_ARGS: further flags
#        tools/gpu_run.sh soak BUILD RESULTS     8 minutes of preemption under --exact on the same
#                                                model; SOAK_MINUTES
set -euo pipefail
what=${1:?test, sanitize, bench or soak} build=${2:?the folder with the programs}

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
  "$build/nibble" "$@" --load-format dummy --json ${NIBBLE_BENCH_ARGS:-} >"$file.part"
  mv "$file.part" "$file"
  echo "$file"
}

# Batches between the usual sizes must not be slower than the next smaller one. 130,816: 131,072
# tokens, the longest context, less 256 for what follows.
run_bench() {
  local model=openai/gpt-oss-120b rows=() test
  for test in 'tg 1 @512' 'tg 1 @8192' 'tg 4' 'tg 5' 'tg 8' 'tg 12' 'tg 16' 'tg 32' 'tg 48' 'tg 64' \
    'tg 100' 'tg 128' 'tg 256' pp512 pp2048 pp8192; do rows+=(--test "$test"); done
  result mxfp4-dense bench $model -n 128 -r 3 --max-num-seqs 256 --dense-format mxfp4 "${rows[@]}"
  result bf16-dense bench $model -n 128 -r 3 --max-num-seqs 64 --test 'tg 1 @512' \
    --test 'tg 1 @8192' --test 'tg 8' --test 'tg 64' --test pp2048 --test pp8192
  case $device in  # Hopper alone has kernels for E4M3 activations
    h[12]00) result mxfp4-dense-fp8 bench $model -r 3 --dense-format mxfp4 --activations fp8 \
      --test pp512 --test pp2048 --test pp8192 ;;
  esac
  result 130816-mxfp4-dense bench $model -n 128 -r 1 --dense-format mxfp4 --test 'tg 1 @130816' \
    --test pp130816
}

run_soak() {
  result preempt bench preempt openai/gpt-oss-120b --dense-format mxfp4 --max-num-seqs 64 \
    --clients 95 --max-model-len 6144 --kv-tokens 160000 --pool 32 --no-enable-prefix-caching \
    --minutes "${SOAK_MINUTES:-8}"
}

case $what in
  test) run_tests ;;
  sanitize) run_sanitizer ;;
  bench | soak)
    results=${3:?the folder for the results}
    mkdir -p "$results"
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 |
      sed 's/^NVIDIA //; s/ .*//' | tr '[:upper:]' '[:lower:]')
    if [[ $what == bench ]]; then run_bench; else run_soak; fi
    ;;
  *) echo "gpu_run: test, sanitize, bench or soak, not $what" >&2; exit 2 ;;
esac
