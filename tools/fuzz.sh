#!/usr/bin/env bash
# Runs every fuzz target of a build folder, starting from tests/fuzz/<target>/ and from what earlier
# runs found, which stays in <build>/corpus/<target>. A crash stops the script. The inputs that a
# target has had in all, and what it covers, are the rows of <build>/fuzz.tsv.
# usage: tools/fuzz.sh BUILD_DIR SECONDS [INPUTS]
#   each target runs SECONDS, or until it has had INPUTS in all; FUZZ_TARGETS=NAME, or a pattern: only those
set -euo pipefail
build=$1 seconds=$2 most=${3:-0}
interrupted=72  # libFuzzer's status after SIGINT or SIGTERM: no finding, and its inputs count
mapfile -t targets < <(compgen -G "$build/${FUZZ_TARGETS:-*}_fuzz")
[[ ${#targets[@]} -gt 0 ]] || { echo "fuzz: no targets in $build" >&2; exit 1; }
table=$build/fuzz.tsv
[[ -e $table ]] || printf 'target\tinputs\tseconds\tedges\tcorpus\n' >"$table"
# Bytes of an input at most: what the target looks at, or enough to show what it does. With
# libFuzzer's 4,096 they take up to three times as long, or count though the target skips them.
declare -A longest=([chat_template]=768 [chat_watcher]=128 [eagle3_config]=1024 [grammar]=512
  [harmony_parser]=768 [openai_request]=1536 [stop_strings]=512 [template_answer]=512
  [tokenizer_encode]=512)
# What is freed stays watched for 4 MiB more, not for 256, which no cache holds; where it was made and
# freed the finding's own run tells: build/fuzz/X_fuzz INPUT.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=4:malloc_context_size=0}
# KiB. Where the stack is as large as ChatTemplate's thread's, it starts none.
ulimit -s $((300 << 10)) || true
# had TARGET COLUMN: what its row says so far.
had() { awk -F'\t' -v t="$1" -v c="$2" '$1 == t { v = $c } END { print v + 0 }' "$table"; }

for target in "${targets[@]}"; do
  name=$(basename "$target" _fuzz)
  seeds=tests/fuzz/$name corpus=$build/corpus/${name}_fuzz log=$build/fuzz-$name.log
  folders=("$corpus")
  [[ ! -d $seeds ]] || folders+=("$seeds")
  mkdir -p "$corpus" "$build/crashes"
  inputs=$(had "$name" 2) runs=-1
  ((most == 0)) || runs=$((most - inputs))
  ((most == 0 || runs > 0)) || continue
  start=$SECONDS failed=0
  # Weighing inputs by how rare their features are takes up to two thirds of the time.
  "$target" -entropic=0 -max_total_time="$seconds" -runs="$runs" -timeout=20 -rss_limit_mb=3072 \
    -max_len="${longest[$name]:-0}" -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
    "${folders[@]}" >"$log" 2>&1 || failed=$?
  ((failed == 0 || failed == interrupted)) ||
    { grep -v '^#' "$log" | tail -40; echo "fuzz: $name failed; its input is in $build/crashes" >&2; exit 1; }
  new=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(grep -o ' cov: [0-9]*' "$log" | tail -1 | tr -dc 0-9)
  row=$(printf '%s\t%s\t%s\t%s\t%s' "$name" $((inputs + new)) $(($(had "$name" 3) + SECONDS - start)) \
    "$edges" "$(find "$corpus" -type f | wc -l)")
  { grep -v "^$name	" "$table"; echo "$row"; } >"$table.part" && mv "$table.part" "$table"
  echo "$row"
  ((failed == 0)) || exit "$failed"
done
echo "fuzz: ${#targets[@]} targets without a finding"
