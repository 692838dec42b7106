#!/usr/bin/env python3
"""Writes tests/goldens/eagle3/<case>/: random Eagle3 heads of odd shapes, as SpecForge, ModelOpt and
speculators write them, for models of tests/goldens/families, and what they draft, computed in
float64 from the rows that transformers left there.

  config.json, model.safetensors      the head
  expected/model.safetensors          logits [T - 1, Vd] f32 of positions 0.., each with the token
                                      behind it; draft_ids [K] i64 (of the target) that follow, each
                                      the likeliest, and draft_logits [K, Vd] they came from;
                                      layers [n] i64: whose entering rows the head reads

Usage: tools/write_eagle3_goldens.py [case...]   (needs torch and safetensors)
"""
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/goldens"
DRAFTS = 4
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
LAYER = {"hidden_act": "silu", "intermediate_size": 152, "num_attention_heads": 3, "num_hidden_layers": 1,
         "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
# The family and its layers whose entering rows are read, the config, and what the tensors add.
CASES = {
    "specforge": ("llama", [1, 2], {
        **LAYER, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "head_dim": 22,
        "draft_vocab_size": 37, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}, {}),
    "specdrift": ("llama", [1, 2], {
        **LAYER, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "head_dim": 16,
        "num_key_value_heads": 3, "norm_output": True, "rope_theta": 5e5, "draft_vocab_size": 101,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}, {"fc_norm": True, "d2t": False}),
    "modelopt": ("qwen3", [1, 2], {
        **LAYER, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "rope_theta": 1e6,
        "rope_scaling": LLAMA3, "draft_vocab_size": 60,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1], "use_aux_hidden_state": True}},
        {"layer": "layers.0.", "embedding": True}),
    "speculators": ("qwen3", [0, 1, 2], {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": 33,
        "target_hidden_size": 64, "norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": {**LAYER, "hidden_size": 48, "head_dim": 24, "model_type": "llama",
                                     "rope_theta": 1e4}},
        {"layer": "layers.0.", "embedding": True, "rows_norm": True, "before_residual": True}),
}


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def frequencies(layer, dim):
    index = torch.arange(dim // 2, dtype=torch.float64)
    inverse = layer.get("rope_theta", 1e4) ** (-2 * index / dim)
    scaling = layer.get("rope_scaling")
    if not scaling:
        return inverse
    wave = 2 * math.pi / inverse
    old, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    smooth = ((old / wave - low) / (high - low)).clamp(0, 1)
    return smooth * inverse + (1 - smooth) * inverse / scaling["factor"]


class Head:
    """One head; keys and values of all positions so far."""

    def __init__(self, tensors, layer, prefix, config, extra):
        self.t = {k: v.double() for k, v in tensors.items() if v.dtype == torch.bfloat16}
        self.layer, self.prefix, self.config, self.extra = layer, prefix, config, extra
        self.keys, self.values = [], []

    def w(self, name):
        return self.t[self.prefix + name + ".weight"]

    def linear(self, x, name):
        y = x @ self.w("self_attn." + name).T
        bias = self.t.get(self.prefix + "self_attn." + name + ".bias")
        return y if bias is None else y + bias

    def turned(self, x, position):
        angle = position * frequencies(self.layer, x.shape[-1])
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def joined(self, rows):
        eps = self.layer["rms_norm_eps"]
        if self.extra.get("fc_norm"):
            rows = [rms(r, self.t[f"fc_norm.{i}.weight"], eps) for i, r in enumerate(rows)]
        x = torch.cat(rows)
        if self.extra.get("rows_norm"):
            x = rms(x, self.t["input_norm.weight"], eps)
        return self.t["fc.weight"] @ x

    def step(self, embedded, hidden, position):
        """Logits and what the next draft goes on from."""
        eps, dim = self.layer["rms_norm_eps"], self.layer["head_dim"]
        n = rms(hidden, self.w("hidden_norm"), eps)
        x = torch.cat([rms(embedded, self.w("input_layernorm"), eps), n])
        heads = lambda y: y.view(-1, dim)
        q = self.turned(heads(self.linear(x, "q_proj")), position)
        self.keys.append(self.turned(heads(self.linear(x, "k_proj")), position))
        self.values.append(heads(self.linear(x, "v_proj")))
        keys, values = torch.stack(self.keys, 1), torch.stack(self.values, 1)  # [G, S, D]
        group = q.shape[0] // keys.shape[0]
        out = []
        for head in range(q.shape[0]):
            weights = (keys[head // group] @ q[head] / math.sqrt(dim)).softmax(0)
            out.append(weights @ values[head // group])
        y = (n if self.extra.get("before_residual") else hidden) + self.linear(torch.cat(out), "o_proj")
        h = rms(y, self.w("post_attention_layernorm"), eps)
        gate, up = self.w("mlp.gate_proj") @ h, self.w("mlp.up_proj") @ h
        y = y + self.w("mlp.down_proj") @ (gate * gate.sigmoid() * up)
        normed = rms(y, self.t["norm.weight"], eps)
        return self.t["lm_head.weight"] @ normed, normed if self.config.get("norm_output") else y


def random_head(layer, prefix, config, extra, widths, g):
    hidden, target, vocab, target_vocab, rows = widths
    dim, q, kv = layer["head_dim"], layer["num_attention_heads"], layer["num_key_value_heads"]
    normal = lambda *shape, std=1.0, mean=0.0: (torch.randn(*shape, generator=g) * std + mean).bfloat16()
    matrix = lambda n, k: normal(n, k, std=k ** -0.5)
    t = {"fc.weight": matrix(hidden, rows * target), "norm.weight": normal(hidden, std=.3, mean=1),
         "lm_head.weight": normal(vocab, hidden, std=2 * hidden ** -0.5)}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        t[prefix + name + ".weight"] = normal(hidden, std=.3, mean=1)
    for name, n, k in (("q", q * dim, 2 * hidden), ("k", kv * dim, 2 * hidden), ("v", kv * dim, 2 * hidden),
                       ("o", hidden, q * dim)):
        t[prefix + f"self_attn.{name}_proj.weight"] = matrix(n, k)
        if layer.get("attention_bias"):
            t[prefix + f"self_attn.{name}_proj.bias"] = normal(n, std=.3)
    width = layer["intermediate_size"]
    for name, n, k in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
        t[prefix + f"mlp.{name}_proj.weight"] = matrix(n, k)
    if extra.get("fc_norm"):
        t |= {f"fc_norm.{i}.weight": normal(target, std=.3, mean=1) for i in range(rows)}
    if extra.get("rows_norm"):
        t["input_norm.weight"] = normal(rows * target, std=.3, mean=1)
    if extra.get("embedding"):
        t["embed_tokens.weight"] = normal(target_vocab, hidden)
    if extra.get("d2t", True):
        ids = torch.randperm(target_vocab, generator=g)[:vocab].sort().values
        t["d2t"] = ids - torch.arange(vocab)
        t["t2d"] = torch.zeros(target_vocab, dtype=torch.bool).index_fill(0, ids, True)
    return t


def write(name):
    family, layers, config, extra = CASES[name]
    target = load_file(ROOT / "families" / family / "model.safetensors")
    seen = load_file(ROOT / "families" / family / "expected/model.safetensors")
    embedding = target["model.embed_tokens.weight"].float()
    target_vocab, target_hidden = embedding.shape
    config = json.loads(json.dumps(config))
    layer = config.get("transformer_layer_config", config)
    layer.setdefault("hidden_size", target_hidden)
    layer["vocab_size"] = target_vocab
    prefix, g = extra.get("layer", "midlayer."), torch.Generator().manual_seed(len(name))
    widths = (layer["hidden_size"], target_hidden, config["draft_vocab_size"], target_vocab, len(layers))
    tensors = random_head(layer, prefix, config, extra, widths, g)
    if extra.get("embedding"):
        embedding = tensors["embed_tokens.weight"].float()
    embedding = embedding.double()
    head, tokens = Head(tensors, layer, prefix, config, extra), seen["tokens"]
    ids = tensors["d2t"] + torch.arange(widths[2]) if "d2t" in tensors else torch.arange(widths[2])
    rows = lambda p: head.joined([seen[f"x.{l}"][p].double() for l in layers])
    logits = []
    for p in range(len(tokens) - 1):
        one, hidden = head.step(embedding[tokens[p + 1]], rows(p), p)
        logits.append(one)
    draft_ids, draft_logits = [], [logits[-1]]
    while True:
        draft_ids.append(ids[draft_logits[-1].argmax()])
        if len(draft_ids) == DRAFTS:
            break
        one, hidden = head.step(embedding[draft_ids[-1]], hidden, len(tokens) - 2 + len(draft_ids))
        draft_logits.append(one)
    out = ROOT / "eagle3" / name
    (out / "expected").mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, out / "model.safetensors")
    save_file({"logits": torch.stack(logits).float(), "draft_ids": torch.stack(draft_ids),
               "draft_logits": torch.stack(draft_logits).float(), "layers": torch.tensor(layers)},
              out / "expected/model.safetensors")
    print(name, len(tokens), [int(i) for i in draft_ids])


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write(case)
