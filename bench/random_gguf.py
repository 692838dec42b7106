"""Writes a GGUF of a model's shape with random weights, for bench/cpu_vs_llama_cpp.py and
bench/serve_vs_llama_cpp.py.

gpt-oss-20b, the default; Qwen3-8B, Qwen3-30B-A3B, and Qwen3-Next-80B-A3B with 184 of its 512 experts,
30 billion weights: layers Q4_0, embedding and head Q8_0. Of gpt-oss:

Experts MXFP4, dense layers and embedding Q8_0, as the GGUFs that people run. Norms 1, biases and
sinks 0, routers N(0, 2 / sqrt(H)): every expert gets its share of tokens. (Counted in ik_llama.cpp,
2026-11-22: 4, 8 and 16 streams touch 13.1, 20.7 and 27.8 experts a layer; even routing would touch
13.2, 21.0 and 28.2.) Needs gguf and numpy.

usage: random_gguf.py FILE [--model gpt-oss-20b] [--layers 24] [--tokenizer TOKENIZER.JSON]
"""
import argparse
import json

import gguf
import numpy as np

LAYERS, HIDDEN, WIDTH, EXPERTS, CHOSEN = 24, 2880, 2880, 32, 4
HEADS, KV_HEADS, HEAD_DIM, VOCAB, WINDOW = 64, 8, 64, 201088, 128
T, Q = gguf.MODEL_TENSOR, gguf.GGMLQuantizationType
BLOCK_BYTES = {Q.F32: (1, 4), Q.Q8_0: (32, 34), Q.Q4_0: (32, 18), Q.MXFP4: (32, 17)}
# layers, hidden, width (of an expert), experts, chosen, heads; 8 KV heads or 4, of 128
QWEN3 = {"qwen3-8b": (36, 4096, 12288, 0, 0, 32, 8), "qwen3-30b-a3b": (48, 2048, 768, 128, 8, 32, 4)}
QWEN3_VOCAB, QWEN3_HEAD_DIM = 151936, 128
# The same, with 2 KV heads of 256; and of its delta nets: heads of keys and of values, their dims, taps
QWEN3_NEXT = {"qwen3-next-30b-a3b": (48, 2048, 512, 184, 10, 16, 2)}
NEXT_HEAD_DIM, KEY_HEADS, VALUE_HEADS, DELTA_DIM, TAPS, FULL_INTERVAL = 256, 16, 32, 128, 4, 4


def random_bytes(rng, shape, kind):
    """The bytes of a weight [.., K] whose values have deviation 1 / sqrt(K)."""
    elems, size = BLOCK_BYTES[kind]
    blocks = np.frombuffer(rng.bytes(int(np.prod(shape)) // elems * size), np.uint8)
    blocks = blocks.reshape(*shape[:-1], shape[-1] // elems, size).copy()
    deviation = shape[-1] ** -0.5
    if kind in (Q.Q8_0, Q.Q4_0):  # float16 scale, 32 int8: uniform, 74 rms; int4: 4.6
        rms = 74 if kind == Q.Q8_0 else 4.6
        blocks[..., :2] = np.array([deviation / rms], np.float16).view(np.uint8)
    else:  # e8m0 scale, 32 e2m1: 2.9 rms
        blocks[..., 0] = 127 + round(np.log2(deviation / 2.9))
    return blocks.reshape(*shape[:-1], -1)


def tensors(layers):
    """(name, shape with K last, kind, fill) of every tensor; fill: a constant, or None: random."""
    def name(tensor, layer=None, part="weight"):
        return gguf.TENSOR_NAMES[tensor].format(bid=layer) + "." + part

    yield name(T.TOKEN_EMBD), (VOCAB, HIDDEN), Q.Q8_0, None
    yield name(T.OUTPUT_NORM), (HIDDEN,), Q.F32, 1
    yield name(T.OUTPUT), (VOCAB, HIDDEN), Q.Q8_0, None
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for l in range(layers):
        for norm in (T.ATTN_NORM, T.ATTN_POST_NORM):
            yield name(norm, l), (HIDDEN,), Q.F32, 1
        yield name(T.ATTN_SINKS, l), (HEADS,), Q.F32, 0
        for tensor, n, k in ((T.ATTN_Q, q, HIDDEN), (T.ATTN_K, kv, HIDDEN),
                             (T.ATTN_V, kv, HIDDEN), (T.ATTN_OUT, HIDDEN, q)):
            yield name(tensor, l), (n, k), Q.Q8_0, None
            yield name(tensor, l, "bias"), (n,), Q.F32, 0
        yield name(T.FFN_GATE_INP, l), (EXPERTS, HIDDEN), Q.F32, None
        yield name(T.FFN_GATE_INP, l, "bias"), (EXPERTS,), Q.F32, 0
        for tensor, n, k in ((T.FFN_GATE_EXP, WIDTH, HIDDEN), (T.FFN_UP_EXP, WIDTH, HIDDEN),
                             (T.FFN_DOWN_EXP, HIDDEN, WIDTH)):
            yield name(tensor, l), (EXPERTS, n, k), Q.MXFP4, None
            yield name(tensor, l, "bias"), (EXPERTS, n), Q.F32, 0


def qwen3_tensors(shape):
    """The same of Qwen3."""
    def name(tensor, layer=None):
        return gguf.TENSOR_NAMES[tensor].format(bid=layer) + ".weight"

    layers, hidden, width, experts, _, heads, kv_heads = shape
    q, kv = heads * QWEN3_HEAD_DIM, kv_heads * QWEN3_HEAD_DIM
    yield name(T.TOKEN_EMBD), (QWEN3_VOCAB, hidden), Q.Q8_0, None
    yield name(T.OUTPUT_NORM), (hidden,), Q.F32, 1
    yield name(T.OUTPUT), (QWEN3_VOCAB, hidden), Q.Q8_0, None
    up, down = (width, hidden), (hidden, width)
    for l in range(layers):
        for norm, n in ((T.ATTN_NORM, hidden), (T.FFN_NORM, hidden),
                        (T.ATTN_Q_NORM, QWEN3_HEAD_DIM), (T.ATTN_K_NORM, QWEN3_HEAD_DIM)):
            yield name(norm, l), (n,), Q.F32, 1
        for tensor, n, k in ((T.ATTN_Q, q, hidden), (T.ATTN_K, kv, hidden),
                             (T.ATTN_V, kv, hidden), (T.ATTN_OUT, hidden, q)):
            yield name(tensor, l), (n, k), Q.Q4_0, None
        if experts:
            yield name(T.FFN_GATE_INP, l), (experts, hidden), Q.F32, None
            for tensor, matrix in ((T.FFN_GATE_EXP, up), (T.FFN_UP_EXP, up), (T.FFN_DOWN_EXP, down)):
                yield name(tensor, l), (experts, *matrix), Q.Q4_0, None
        else:
            for tensor, matrix in ((T.FFN_GATE, up), (T.FFN_UP, up), (T.FFN_DOWN, down)):
                yield name(tensor, l), matrix, Q.Q4_0, None


def qwen3_next_tensors(shape):
    """The same of Qwen3-Next."""
    def name(tensor, layer=None, part=".weight"):
        return gguf.TENSOR_NAMES[tensor].format(bid=layer) + part

    layers, hidden, width, experts, _, heads, kv_heads = shape
    q, kv = heads * NEXT_HEAD_DIM, kv_heads * NEXT_HEAD_DIM
    keys, values = KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM
    yield name(T.TOKEN_EMBD), (QWEN3_VOCAB, hidden), Q.Q8_0, None
    yield name(T.OUTPUT_NORM), (hidden,), Q.F32, 1
    yield name(T.OUTPUT), (QWEN3_VOCAB, hidden), Q.Q8_0, None
    for l in range(layers):
        if (l + 1) % FULL_INTERVAL:
            vectors = ((T.SSM_NORM, DELTA_DIM),)
            matrices = ((T.ATTN_QKV, 2 * keys + values, hidden), (T.ATTN_GATE, values, hidden),
                        (T.SSM_BETA_ALPHA, 2 * VALUE_HEADS, hidden), (T.SSM_OUT, hidden, values))
            yield name(T.SSM_CONV1D, l), (2 * keys + values, TAPS), Q.F32, None
            yield name(T.SSM_DT, l, ".bias"), (VALUE_HEADS,), Q.F32, 1
            yield name(T.SSM_A, l, ""), (VALUE_HEADS,), Q.F32, -1
        else:
            vectors = (T.ATTN_Q_NORM, NEXT_HEAD_DIM), (T.ATTN_K_NORM, NEXT_HEAD_DIM)
            matrices = ((T.ATTN_Q, 2 * q, hidden), (T.ATTN_K, kv, hidden), (T.ATTN_V, kv, hidden),
                        (T.ATTN_OUT, hidden, q))
        for norm, n in (*vectors, (T.ATTN_NORM, hidden), (T.ATTN_POST_NORM, hidden)):
            yield name(norm, l), (n,), Q.F32, 1
        for tensor, n, k in matrices:
            yield name(tensor, l), (n, k), Q.Q4_0, None
        for router, rows in (T.FFN_GATE_INP, (experts,)), (T.FFN_GATE_INP_SHEXP, ()):
            yield name(router, l), (*rows, hidden), Q.F32, None
        for tensor, shared, n, k in ((T.FFN_GATE_EXP, T.FFN_GATE_SHEXP, width, hidden),
                                     (T.FFN_UP_EXP, T.FFN_UP_SHEXP, width, hidden),
                                     (T.FFN_DOWN_EXP, T.FFN_DOWN_SHEXP, hidden, width)):
            yield name(tensor, l), (experts, n, k), Q.Q4_0, None
            yield name(shared, l), (n, k), Q.Q4_0, None


def add_qwen3(w, shape, head_dim):
    layers, hidden, width, experts, chosen, heads, kv_heads = shape
    w.add_block_count(layers)
    w.add_context_length(40960)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(width)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    w.add_vocab_size(QWEN3_VOCAB)
    if experts:
        w.add_expert_feed_forward_length(width)
        w.add_expert_count(experts)
        w.add_expert_used_count(chosen)


def add_qwen3_next(w, shape):
    add_qwen3(w, shape, NEXT_HEAD_DIM)
    w.add_expert_shared_feed_forward_length(shape[2])
    w.add_rope_dimension_count(NEXT_HEAD_DIM // 4)
    w.add_full_attention_interval(FULL_INTERVAL)
    w.add_ssm_conv_kernel(TAPS)
    w.add_ssm_state_size(DELTA_DIM)
    w.add_ssm_group_count(KEY_HEADS)
    w.add_ssm_time_step_rank(VALUE_HEADS)
    w.add_ssm_inner_size(VALUE_HEADS * DELTA_DIM)


def add_vocabulary(w, path):
    """Of a tokenizer.json with byte-level BPE; ids that it does not use become [unused]."""
    with open(path) as f:
        tokenizer = json.load(f)
    texts = [f"[unused{i}]" for i in range(VOCAB)]
    types = [gguf.TokenType.UNUSED] * VOCAB
    for text, i in tokenizer["model"]["vocab"].items():
        texts[i], types[i] = text, gguf.TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        texts[token["id"]], types[token["id"]] = token["content"], gguf.TokenType.CONTROL
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-4o")
    w.add_token_list(texts)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m)
                        for m in tokenizer["model"]["merges"]])
    w.add_eos_token_id(texts.index("<|return|>"))


def add_gpt_oss(w, layers):
    w.add_block_count(layers)
    w.add_context_length(131072)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(WIDTH)
    w.add_expert_feed_forward_length(WIDTH)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_expert_count(EXPERTS)
    w.add_expert_used_count(CHOSEN)
    w.add_sliding_window(WINDOW)
    w.add_rope_freq_base(150000.0)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(32.0)
    w.add_rope_scaling_orig_ctx_len(4096)
    w.add_vocab_size(VOCAB)


def write(path, model="gpt-oss-20b", layers=None, tokenizer=None):
    if model in QWEN3:
        shape = (layers or QWEN3[model][0], *QWEN3[model][1:])
        w = gguf.GGUFWriter(path, "qwen3moe" if shape[3] else "qwen3")
        add_qwen3(w, shape, QWEN3_HEAD_DIM)
        of_model = lambda: qwen3_tensors(shape)
    elif model in QWEN3_NEXT:
        shape = (layers or QWEN3_NEXT[model][0], *QWEN3_NEXT[model][1:])
        w = gguf.GGUFWriter(path, "qwen3next")
        add_qwen3_next(w, shape)
        of_model = lambda: qwen3_next_tensors(shape)
    else:
        w = gguf.GGUFWriter(path, "gpt-oss")
        add_gpt_oss(w, layers or LAYERS)
        of_model = lambda: tensors(layers or LAYERS)
    if tokenizer:
        add_vocabulary(w, tokenizer)
    else:
        w.add_tokenizer_model("no_vocab")
    write_tensors(w, of_model)


def write_tensors(w, of_model):
    for name, shape, kind, _ in of_model():
        elems, size = BLOCK_BYTES[kind]
        rows = (*shape[:-1], shape[-1] // elems * size) if kind != Q.F32 else shape
        dtype = np.dtype(np.float32 if kind == Q.F32 else np.uint8)
        w.add_tensor_info(name, rows, dtype, int(np.prod(rows)) * dtype.itemsize, kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for _, shape, kind, fill in of_model():
        if kind != Q.F32:
            data = random_bytes(rng, shape, kind)
        elif fill is None:
            data = rng.standard_normal(shape, np.float32) * np.float32(2 * shape[-1] ** -0.5)
        else:
            data = np.full(shape, fill, np.float32)
        w.write_tensor_data(data)
    w.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--model", choices=["gpt-oss-20b", *QWEN3, *QWEN3_NEXT], default="gpt-oss-20b")
    parser.add_argument("--layers", type=int, help="else the model's own")
    parser.add_argument("--tokenizer", help="else there is none")
    args = parser.parse_args()
    write(args.file, args.model, args.layers, args.tokenizer)
