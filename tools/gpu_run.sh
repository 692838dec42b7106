#!/usr/bin/env bash
# Runs what was built for a GPU, on the machine that has it: it needs tools/ and BUILD, tests also
# models/ and tests/goldens/, where they lay when those were built.
#
# usage: tools/gpu_run.sh test BUILD             every nibble_*_gpu_test of BUILD
#        tools/gpu_run.sh sanitize BUILD         the same on small shapes under compute-sanitizer:
#                                                memcheck, racecheck, initcheck, synccheck
#        NIBBLE_JOBS: processes that test side by side (4)
#        tools/gpu_run.sh bench BUILD RESULTS    the table of gpt-oss-120b, random weights, what a
#                                                step is made of and each kernel alone, as JSON in
#                                                RESULTS; NIBBLE_BENCH_ARGS: further flags
#        tools/gpu_run.sh families BUILD RESULTS a table row of each other model, random weights
#        tools/gpu_run.sh load BUILD RESULTS     the same shape as a checkpoint of 65 GB in LOAD_AT
#                                                (/dev/shm), loaded; needs python3 with numpy
#        tools/gpu_run.sh soak BUILD RESULTS     8 minutes of preemption under --exact on the same
#                                                model; SOAK_MINUTES
set -euo pipefail
what=${1:?test, sanitize, bench, families, load or soak} build=${2:?the folder with the programs}

# One of the shares of a program's tests, in a folder of its own. What it says is printed whole.
run_share() {
  local tool=$1 program=$2 share=$3 under=() filter='*' at rc=0
  at=$(mktemp -d)
  export TEST_TMPDIR=$at/ GTEST_SHARD_INDEX=$share
  if [[ $tool != test ]]; then
    # API errors are left out: tests provoke some. A share may have no test that uses the GPU.
    under=(compute-sanitizer --tool "$tool" --report-api-errors no --require-cuda-init no
      --error-exitcode 9 --print-limit 10)
    export NIBBLE_SMALL_TESTS=2800  # the most activations of a case
  fi
  if [[ $tool == racecheck ]]; then
    # It follows barriers at which one lane arrives for its warp only if told so. One test it ends
    # without a word, with ten sequences as with eighty; the other tools run it.
    under+=(--racecheck-indirect-barrier-dependency)
    NIBBLE_SMALL_TESTS=720 filter='-*StepsBegunAheadPassOverWhatHasEnded*'
  fi
  # Its own count of a block's barriers falls short, and what it does then looks like our failure;
  # no block has 256, and what the tool keeps for each takes the GPU's memory.
  if [[ $tool == synccheck ]]; then under+=(--num-cuda-barriers 256); fi
  "${under[@]}" "$program" --gtest_brief=1 --gtest_filter="$filter" &>"$at/log" || rc=$?
  # The tools drop the exit status of a program that never came to use the GPU.
  if ((rc == 0)) && { ! grep -q PASSED "$at/log" || grep -q FAILED "$at/log"; }; then rc=1; fi
  {
    flock 9  # one after the other
    echo "== $tool ${program##*/} $((share + 1))/$GTEST_TOTAL_SHARDS: rc $rc, $SECONDS s"
    cat "$at/log"
  } 9<"$0"
  rm -r "$at"
  return $((rc != 0))
}
export -f run_share

# The tests of every program, under each tool, NIBBLE_JOBS processes side by side.
run_tests() {
  local tool program share programs
  shopt -s nullglob
  programs=("$build"/nibble_*_gpu_test "$build"/tests/nibble_*_gpu_test)
  [[ ${#programs[@]} -gt 0 ]] || { echo "gpu_run: no tests in $build" >&2; return 1; }
  export GTEST_TOTAL_SHARDS=${NIBBLE_JOBS:-4}
  for tool in "$@"; do
    for program in "${programs[@]}"; do
      for ((share = 0; share < GTEST_TOTAL_SHARDS; ++share)); do
        printf '%s\0' "$tool" "$program" "$share"
      done
    done
  done | xargs -0 -n 3 -P "$GTEST_TOTAL_SHARDS" bash -c 'run_share "$@"' "$0"
}

# One result. $1: a name for the file, the rest: arguments of nibble.
result() {
  local file
  file=$results/$(date -u +%F)-$device-$1.json
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
  run() { result "gpt-oss-120b-$1" bench "${model[@]}" "${@:2}" "${rows[@]}" "${args[@]}" || failed=1; }
  case $device in h[12]00) fp8=(--activations fp8) ;; esac  # Hopper alone has kernels for E4M3
  tests 'tg 1 @512' 'tg 1 @8192' 'tg 4' 'tg 5' 'tg 8' 'tg 12' 'tg 16' 'tg 32' 'tg 48' 'tg 64' \
    'tg 100' 'tg 128' 'tg 256' pp512 pp2048 pp8192
  run mxfp4-dense -n 128 -r 3 --max-num-seqs 256 "${mxfp4[@]}"
  tests 'tg 1 @512' 'tg 1 @8192' 'tg 8' 'tg 64' pp2048 pp8192
  run bf16-dense -n 128 -r 3 --max-num-seqs 64
  tests 'tg 128' 'tg 256' pp512 pp2048 pp8192
  [[ ${#fp8[@]} == 0 ]] ||
    run mxfp4-dense-fp8 -n 128 -r 3 --max-num-seqs 256 "${mxfp4[@]}" "${fp8[@]}"
  tests 'tg 1 @512' 'tg 8' 'tg 64' 'tg 256' pp512 pp8192
  run profile -n 128 -r 1 --profile --max-num-seqs 256 "${mxfp4[@]}"
  tests pp512 pp8192
  [[ ${#fp8[@]} == 0 ]] || run profile-fp8 -r 1 --profile "${mxfp4[@]}" "${fp8[@]}"
  tests 'tg 1 @130816' pp130816
  run 130816-mxfp4-dense -n 128 -r 1 "${mxfp4[@]}"
  result gpt-oss-120b-ops bench ops openai/gpt-oss-120b || failed=1
  return $failed
}

# NIBBLE_BENCH_ARGS: further flags.
run_families() {
  local failed=0 model args=()
  read -ra args <<<"${NIBBLE_BENCH_ARGS:-}"
  for model in nvidia/Qwen3-8B-NVFP4 nvidia/Llama-3.1-8B-Instruct-NVFP4 \
    meta-llama/Llama-3.1-8B-Instruct nvidia/Qwen3-30B-A3B-NVFP4 \
    nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4 nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4; do
    result "${model##*/}" bench "$model" --load-format dummy -n 32 -r 1 --max-num-seqs 256 \
      --test 'tg 1 @512' --test 'tg 2' --test 'tg 4' --test 'tg 8' --test 'tg 64' --test 'tg 256' \
      --test pp512 --test pp2048 --test pp8192 "${args[@]}" || failed=1
  done
  return $failed
}

# Bytes and what they took are in the results, what plain reads take is printed.
run_load() {
  local at=${LOAD_AT:-/dev/shm}/nibble-random-120b failed=0
  local args=(--max-num-seqs 4 --max-model-len 4096 -n 128 -r 1 --test 'tg 1 @512' --test pp512)
  python3 "$(dirname "$0")/../bench/random_checkpoint.py" "$at" --read || return
  result gpt-oss-120b-load-mxfp4-dense bench "$at" --dense-format mxfp4 "${args[@]}" || failed=1
  result gpt-oss-120b-load-bf16-dense bench "$at" "${args[@]}" || failed=1
  rm -r "$at"
  return $failed
}

run_soak() {
  result gpt-oss-120b-preempt bench preempt openai/gpt-oss-120b --load-format dummy --dense-format mxfp4 \
    --max-num-seqs 64 --clients 95 --max-model-len 5120 --kv-tokens 135000 --pool 32 \
    --no-enable-prefix-caching --minutes "${SOAK_MINUTES:-8}"
}

case $what in
  test) run_tests test ;;
  sanitize) run_tests memcheck racecheck initcheck synccheck ;;
  bench | families | load | soak)
    results=${3:?the folder for the results}
    mkdir -p "$results"
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 |
      sed 's/^NVIDIA //; s/ .*//' | tr '[:upper:]' '[:lower:]')
    "run_$what"
    ;;
  *) echo "gpu_run: test, sanitize, bench, families, load or soak, not $what" >&2; exit 2 ;;
esac
