"""Writes a Hugging Face checkpoint of gpt-oss-120b's or -20b's shape with random weights: 65 or 14
GB, under the real tensor names, for measuring how fast `nibble` loads.

The same 64 MiB of random bytes of each kind are written again and again, so that the disk is what
takes time, not the random numbers. Norms are 1; matrices [.., K] have deviation 1 / sqrt(K), routers
twice that, what is added to the residual stream an eighth; biases and sinks are small. Needs numpy.

usage: random_checkpoint.py DIRECTORY [--model 120b|20b] [--layers N] [--threads 16] [--read]
--layers: fewer of them
--read: afterwards, how fast plain threads read the files, past the page cache where it can be done
"""
import argparse
import json
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

HIDDEN, WIDTH, CHOSEN, VOCAB = 2880, 2880, 4, 201088
HEADS, KV_HEADS, HEAD_DIM = 64, 8, 64
SIZES = {"120b": (36, 128, 15), "20b": (24, 32, 3)}  # layers, experts, files
POOL_BYTES = 64 << 20
PIECE_BYTES = 8 << 20
CODE_RMS = (68.5 / 8) ** 0.5  # of 16 equally likely e2m1 codes


def tensors(layers, experts):
    """(name, dtype, shape, what it holds) in the order of the files."""
    q, kv, fan = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, HIDDEN ** -0.5

    def matrix(name, rows, cols, deviation):
        return name, "BF16", (rows, cols), deviation

    def vector(name, *shape, deviation=0.02):
        return name, "BF16", shape, deviation

    def mxfp4(name, rows, cols, deviation):
        yield name + "_blocks", "U8", (experts, rows, cols // 32, 16), "codes"
        yield name + "_scales", "U8", (experts, rows, cols // 32), ("scales", deviation)
        yield vector(name + "_bias", experts, rows)

    yield matrix("model.embed_tokens.weight", VOCAB, HIDDEN, 1.0)
    for l in range(layers):
        at = f"model.layers.{l}."
        yield vector(at + "input_layernorm.weight", HIDDEN, deviation="one")
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            yield matrix(f"{at}self_attn.{part}_proj.weight", rows, HIDDEN, fan)
            yield vector(f"{at}self_attn.{part}_proj.bias", rows)
        yield matrix(at + "self_attn.o_proj.weight", HIDDEN, q, q ** -0.5 / 8)
        yield vector(at + "self_attn.o_proj.bias", HIDDEN)
        yield vector(at + "self_attn.sinks", HEADS, deviation=1.0)
        yield vector(at + "post_attention_layernorm.weight", HIDDEN, deviation="one")
        yield matrix(at + "mlp.router.weight", experts, HIDDEN, 2 * fan)
        yield vector(at + "mlp.router.bias", experts)
        yield from mxfp4(at + "mlp.experts.gate_up_proj", 2 * WIDTH, HIDDEN, fan)
        yield from mxfp4(at + "mlp.experts.down_proj", HIDDEN, WIDTH, WIDTH ** -0.5 / 8)
    yield vector("model.norm.weight", HIDDEN, deviation="one")
    yield matrix("lm_head.weight", VOCAB, HIDDEN, fan)


class Pools:
    """Random bytes of each kind, made once."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.normal = self.rng.standard_normal(POOL_BYTES // 2, np.float32)
        self.pools = {}

    def bytes(self, what):
        if what not in self.pools:
            self.pools[what] = memoryview(self.make(what).view(np.uint8)).cast("B")
        return self.pools[what]

    def make(self, what):
        if what == "codes":
            return np.frombuffer(self.rng.bytes(POOL_BYTES), np.uint8)
        if what == "one":
            return np.full(HIDDEN, 0x3F80, np.uint16)
        if isinstance(what, tuple):  # e8m0: powers of two about the deviation
            middle = 127 + round(np.log2(what[1] / CODE_RMS))
            return self.rng.integers(middle - 1, middle + 2, POOL_BYTES // 8, np.uint8)
        return ((self.normal * what).view(np.uint32) >> 16).astype(np.uint16)


def size_of(dtype, shape):
    return int(np.prod(shape)) * (2 if dtype == "BF16" else 1)


def plan_files(layers, experts, files):
    """Per file its tensors, of about as many bytes each."""
    wanted = list(tensors(layers, experts))
    total = sum(size_of(t[1], t[2]) for t in wanted)
    plan, done = [[] for _ in range(files)], 0
    for t in wanted:
        plan[min(files - 1, done * files // total)].append(t)
        done += size_of(t[1], t[2])
    return plan, total


def pieces_of(path, file_tensors, pools):
    """Writes the header; returns what is left to be written: (path, offset, bytes)."""
    header, at = {}, 0
    for name, dtype, shape, _ in file_tensors:
        end = at + size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    pieces, offset = [], 8 + len(text)
    for name, dtype, shape, what in file_tensors:
        pool, left = pools.bytes(what), size_of(dtype, shape)
        while left > 0:
            n = min(left, PIECE_BYTES, len(pool))
            start = len(pieces) * 4099 * 64 % (len(pool) - n + 1) // 2 * 2  # another part each time
            pieces.append((path, offset, pool[start:start + n]))
            offset, left = offset + n, left - n
    return pieces


def write(directory, model, layers, threads):
    _, experts, files = SIZES[model]
    plan, total = plan_files(layers, experts, files)
    pools, pieces, weight_map = Pools(), [], {}
    for i, file_tensors in enumerate(plan):
        file = f"model-{i:05}-of-{files - 1:05}.safetensors"
        pieces += pieces_of(os.path.join(directory, file), file_tensors, pools)
        weight_map.update({t[0]: file for t in file_tensors})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    pieces.sort(key=lambda piece: piece[1])  # threads write different files: one takes one at a time
    descriptors = {path: os.open(path, os.O_WRONLY) for path in {p[0] for p in pieces}}

    def put(piece):
        path, offset, data = piece
        while len(data) > 0:
            n = os.pwrite(descriptors[path], data, offset)
            offset, data = offset + n, data[n:]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(put, pieces))
    for descriptor in descriptors.values():
        os.fsync(descriptor)
        os.close(descriptor)
    return total


def write_config(directory, model, layers):
    experts = SIZES[model][1]
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
        "eos_token_id": 200002, "pad_token_id": 199999, "experts_per_token": CHOSEN,
        "num_experts_per_tok": CHOSEN, "num_local_experts": experts, "num_hidden_layers": layers,
        "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": WIDTH, "initial_context_length": 4096,
        "layer_types": ["full_attention" if l % 2 else "sliding_attention" for l in range(layers)],
        "max_position_embeddings": 131072, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-05, "rope_theta": 150000,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                         "original_max_position_embeddings": 4096, "truncate": False},
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                       "model.embed_tokens", "lm_head"]},
        "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "vocab_size": VOCAB}
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


def read(directory, threads):
    """Bytes a second that plain reads of 8 MiB reach; the page cache is left out where it can be."""
    import mmap
    jobs = []
    for name in sorted(os.listdir(directory)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(directory, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)
        jobs += [(descriptor, at) for at in range(0, os.path.getsize(path), PIECE_BYTES)]
    free = [mmap.mmap(-1, PIECE_BYTES) for _ in range(threads)]

    def get(job):
        buffer = free.pop()
        n = os.preadv(job[0], [buffer], job[1])
        free.append(buffer)
        return n

    begin = time.time()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(get, jobs))
    return total / (time.time() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--model", choices=SIZES, default="120b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--read", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.directory, exist_ok=True)
    layers = args.layers or SIZES[args.model][0]
    begin = time.time()
    write_config(args.directory, args.model, layers)
    total = write(args.directory, args.model, layers, args.threads)
    seconds = time.time() - begin
    print(f"wrote {total} bytes of weights in {seconds:.1f} s: {total / seconds / 1e9:.2f} GB/s")
    if args.read:
        print(f"plain reads: {read(args.directory, args.threads) / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
