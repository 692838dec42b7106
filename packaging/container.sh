#!/bin/bash
# The container's entry point.
#   serve [FLAGS]   the server, told by variables (default); FLAGS go after them, so they win
#   healthy         exit status 0 where the server is ready: the health check
#   anything else   is run: `pull REPO`, `doctor`, ... as commands of nibble, `vllm serve ...`, `bash`
#
# MODEL (none: the small model), HOST (0.0.0.0), PORT (8000), GPU_MEMORY_UTIL, MAX_MODEL_LEN,
# MAX_NUM_SEQS, TENSOR_PARALLEL_SIZE, VLLM_EXTRA_ARGS and NIBBLE_ARGS (more flags, split at spaces as
# a shell does), NIBBLE_API_KEY.
set -euo pipefail

serve() {
  local flags=(--host "${HOST:-0.0.0.0}" --port "${PORT:-8000}") extra=()
  [[ -z ${MODEL:-} ]] || flags+=(--model "$MODEL")
  [[ -z ${GPU_MEMORY_UTIL:-} ]] || flags+=(--gpu-memory-utilization "$GPU_MEMORY_UTIL")
  [[ -z ${MAX_MODEL_LEN:-} ]] || flags+=(--max-model-len "$MAX_MODEL_LEN")
  [[ -z ${MAX_NUM_SEQS:-} ]] || flags+=(--max-num-seqs "$MAX_NUM_SEQS")
  [[ -z ${TENSOR_PARALLEL_SIZE:-} ]] || flags+=(--tensor-parallel-size "$TENSOR_PARALLEL_SIZE")
  # Quotes in them hold words together; nothing in them is run.
  mapfile -t extra < <(xargs -r -n 1 printf '%s\n' <<<"${VLLM_EXTRA_ARGS:-} ${NIBBLE_ARGS:-}")
  wait $! || { echo "VLLM_EXTRA_ARGS, NIBBLE_ARGS: a quote is not closed" >&2; exit 2; }
  exec nibble serve "${flags[@]}" "${extra[@]}" "$@"
}

# What /health answers, without a client in the image.
healthy() {
  local status
  exec 3<>"/dev/tcp/127.0.0.1/${PORT:-8000}"
  printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
  read -r -t 4 _ status _ <&3
  [[ $status == 200 ]]
}

case ${1:-serve} in
  serve) shift $(($# > 0)); serve "$@" ;;
  healthy) healthy ;;
  ray-head | ray-worker) echo "there is no $1 here: nibble starts its ranks itself, see docs/ranks.md" >&2; exit 2 ;;
  pull | chat | bench | plan | doctor | inspect | score | eval | tokenize | help | -*)
    exec nibble "$@" ;;
  *) exec "$@" ;;
esac
