#!/usr/bin/env bash
# Prints the CMake preset for this machine: spark (GB10, compute capability 12.1), h200 (9.0) or
# cpu. Another NVIDIA GPU gets `cpu` and a note: nibble has no kernels for it.
# NVIDIA_PROC: where the driver lists its GPUs (for tests).
set -euo pipefail
ls "${NVIDIA_PROC:-/proc/driver/nvidia}"/gpus/*/information >/dev/null 2>&1 || { echo cpu; exit; }
command -v nvidia-smi >/dev/null || {
  echo "nibble: an NVIDIA GPU, but no nvidia-smi to name it; building for the CPU," \
    "which make serve ARGS='--device cpu' runs on" >&2
  echo cpu; exit
}
case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1) in
  12.1) echo spark ;;
  9.0) echo h200 ;;
  *) echo "nibble: no kernels for this GPU (Hopper and GB10 are supported); building for the CPU," \
       "which make serve ARGS='--device cpu' runs on" >&2
     echo cpu ;;
esac
