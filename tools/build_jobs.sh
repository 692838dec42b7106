#!/usr/bin/env bash
# Prints how many compilers to run at once: one a core, but at least 1.5 GB of free memory each.
set -euo pipefail
available_kb=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
jobs=$(nproc)
fits=$((available_kb / 1500000))
((fits < jobs)) && jobs=$fits
echo $((jobs > 0 ? jobs : 1))
