#!/usr/bin/env bash
# Runs every fuzz target of a build folder for some seconds each, starting from tests/fuzz/<target>/.
# What a run finds beyond the corpus stays in <build>/corpus/<target>; a crash stops the script.
# usage: tools/fuzz.sh BUILD_DIR SECONDS
set -euo pipefail
build=$1 seconds=$2
shopt -s nullglob
targets=("$build"/*_fuzz)
[[ ${#targets[@]} -gt 0 ]] || { echo "fuzz: no targets in $build" >&2; exit 1; }
for target in "${targets[@]}"; do
  name=$(basename "$target")
  seeds=tests/fuzz/${name%_fuzz}
  mkdir -p "$build/corpus/$name" "$build/crashes"
  echo "== $name, $seconds s"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/crashes/$name-" -verbosity=0 "$build/corpus/$name" $([[ -d $seeds ]] && echo "$seeds")
done
echo "fuzz: ${#targets[@]} targets ran $seconds s each without a finding"
