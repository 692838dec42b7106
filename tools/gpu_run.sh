#!/usr/bin/env bash
# Runs what was built for a GPU, on the machine that has it: everything it needs is in two folders.
#
# usage: tools/gpu_run.sh test BUILD             every nibble_*_gpu_test of BUILD
#        tools/gpu_run.sh sanitize BUILD         the same on small shapes under compute-sanitizer:
#                                                memcheck, racecheck, initcheck, synccheck
#        tools/gpu_run.sh bench BUILD RESULTS    the table of gpt-oss-120b, random weights, as JSON
#                                                in RESULTS; NIBBLE_BENCH_ARGS: further flags
set -euo pipefail
what=${1:?test, sanitize or bench} build=${2:?the folder with the programs}

run_tests() {
  local failed=0 program
  for program in "$build"/nibble_*_gpu_test; do
    echo "== ${program##*/}"
    "$program" --gtest_brief=1 || failed=1
  done
  return $failed
}

# API errors are left out: tests provoke some. Racecheck follows barriers at which one lane arrives
# for its warp only if told so.
run_sanitizer() {
  local failed=0 program tool
  export NIBBLE_SMALL_TESTS=1
  for tool in memcheck racecheck initcheck synccheck; do
    for program in "$build"/nibble_*_gpu_test; do
      echo "== $tool ${program##*/}"
      compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 --print-limit 10 \
        $([[ $tool == racecheck ]] && echo --racecheck-indirect-barrier-dependency) \
        "$program" --gtest_brief=1 || failed=1
    done
  done
  return $failed
}

# Rows of one load: decoding at depths, batches, prompts. $1: a name for the file, the rest: flags.
bench_rows() {
  local name=$1 file
  shift
  file=$results/$(date -u +%F)-$device-$name.json
  "$build/nibble" bench openai/gpt-oss-120b --load-format dummy --json -n 128 -r 3 \
    --max-num-seqs 256 "$@" ${NIBBLE_BENCH_ARGS:-} >"$file.part"
  mv "$file.part" "$file"
  echo "$file"
}

case $what in
  test) run_tests ;;
  sanitize) run_sanitizer ;;
  bench)
    results=${3:?the folder for the results}
    mkdir -p "$results"
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 |
      sed 's/^NVIDIA //; s/ .*//' | tr '[:upper:]' '[:lower:]')
    decode=(--test 'tg 1 @512' --test 'tg 1 @8192' --test 'tg 8' --test 'tg 16' --test 'tg 32'
      --test 'tg 64' --test 'tg 128' --test 'tg 256')
    prompts=(--test pp512 --test pp2048 --test pp8192)
    bench_rows gpt-oss-120b-mxfp4-dense --dense-format mxfp4 "${decode[@]}" "${prompts[@]}"
    bench_rows gpt-oss-120b-bf16-dense "${decode[@]:0:2}" --test 'tg 8' --test 'tg 64' \
      "${prompts[@]:2}"
    ;;
  *) echo "gpu_run: test, sanitize or bench, not $what" >&2; exit 2 ;;
esac
