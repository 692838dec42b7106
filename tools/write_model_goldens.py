#!/usr/bin/env python3
"""Writes tests/goldens/gpt_oss/<case>/: small random gpt-oss checkpoints of odd shapes, and what
Hugging Face transformers computes with them (float32 on the dequantized weights, eager attention).

  config.json, model.safetensors      the checkpoint, MXFP4 experts as openai/gpt-oss has them
  expected/model.safetensors          tokens [T] i64, rows [R] i64 (positions), logits [R, V] f32,
                                      x.<layer> [R, H] f32: the residual stream that enters a layer

Usage: tools/write_model_goldens.py [case...]   (needs torch, transformers, safetensors)
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Mxfp4Config

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/goldens/gpt_oss"
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096, "truncate": False}
S, F = "sliding_attention", "full_attention"
# The smallest gap between the last expert chosen and the first left out, so that float32 rounding
# in another order cannot choose another one: about 1e-7 relative per sum of ~100 terms of size ~1.
MIN_ROUTER_GAP = 1e-4

CASES = {
    "heads_6_2": dict(hidden=96, heads=6, kv=2, dim=16, experts=5, top_k=2, width=64, vocab=199,
                      window=5, layers=[S, F, S, F], rope=YARN, tokens=48, seed=1),
    "heads_8_1": dict(hidden=160, heads=8, kv=1, dim=32, experts=3, top_k=3, width=96, vocab=101,
                      window=128, layers=[S, F, S], rope=dict(YARN, truncate=True), tokens=300,
                      seed=2),
    "plain_rope": dict(hidden=64, heads=3, kv=3, dim=24, experts=4, top_k=1, width=32, vocab=67,
                       window=7, layers=[F, F, S], rope={"rope_type": "default"}, tokens=40,
                       seed=3),
    "attention_factor": dict(hidden=32, heads=4, kv=2, dim=8, experts=3, top_k=2, width=160,
                             vocab=50, window=16, layers=[F, S],
                             rope=dict(YARN, factor=4.0, original_max_position_embeddings=64,
                                       attention_factor=1.25), tokens=200, seed=4),
    # Of a shape that kernels for GPUs take; every expert is chosen, so no rounding can choose others.
    "head_dim_64": dict(hidden=128, heads=4, kv=1, dim=64, experts=3, top_k=3, width=64, vocab=208,
                        window=16, layers=[S, F, S], rope=YARN, tokens=120, seed=6),
    "past_4096": dict(hidden=32, heads=4, kv=1, dim=16, experts=3, top_k=2, width=32, vocab=61,
                      window=128, layers=[S, F], rope=YARN, tokens=4500, seed=5),
}


def config_of(c):
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
        "num_hidden_layers": len(c["layers"]), "hidden_size": c["hidden"],
        "intermediate_size": c["width"], "num_attention_heads": c["heads"],
        "num_key_value_heads": c["kv"], "head_dim": c["dim"], "num_local_experts": c["experts"],
        "num_experts_per_tok": c["top_k"], "experts_per_token": c["top_k"],
        "layer_types": c["layers"], "sliding_window": c["window"], "vocab_size": c["vocab"],
        "max_position_embeddings": 131072, "rope_theta": 150000, "rope_scaling": c["rope"],
        "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "hidden_act": "silu", "attention_bias": True,
        "attention_dropout": 0.0, "tie_word_embeddings": False, "pad_token_id": 0,
        "eos_token_id": 0,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"]}}


def random_weights(c, g):
    h, d, e, f = c["hidden"], c["dim"], c["experts"], c["width"]

    def normal(*shape, std=1.0, mean=0.0):
        return (torch.randn(*shape, generator=g) * std + mean).bfloat16()

    def matrix(rows, cols):
        return normal(rows, cols, std=cols ** -0.5)

    t = {"model.embed_tokens.weight": normal(c["vocab"], h),
         "model.norm.weight": normal(h, std=0.3, mean=1.0), "lm_head.weight": matrix(c["vocab"], h)}
    for l in range(len(c["layers"])):
        p = f"model.layers.{l}."
        t[p + "input_layernorm.weight"] = normal(h, std=0.3, mean=1.0)
        t[p + "post_attention_layernorm.weight"] = normal(h, std=0.3, mean=1.0)
        for name, rows in (("q", c["heads"] * d), ("k", c["kv"] * d), ("v", c["kv"] * d)):
            t[p + f"self_attn.{name}_proj.weight"] = matrix(rows, h)
            t[p + f"self_attn.{name}_proj.bias"] = normal(rows, std=0.3)
        t[p + "self_attn.o_proj.weight"] = matrix(h, c["heads"] * d)
        t[p + "self_attn.o_proj.bias"] = normal(h, std=0.3)
        t[p + "self_attn.sinks"] = normal(c["heads"])
        t[p + "mlp.router.weight"] = matrix(e, h)
        t[p + "mlp.router.bias"] = normal(e, std=0.3)
        for name, rows, cols in (("gate_up_proj", 2 * f, h), ("down_proj", h, f)):
            blocks = torch.randint(0, 256, (e, rows, cols // 32, 16), generator=g)
            scales = torch.randint(121, 124, (e, rows, cols // 32), generator=g)
            q = p + "mlp.experts." + name
            t[q + "_blocks"], t[q + "_scales"] = blocks.byte(), scales.byte()
            t[q + "_bias"] = normal(e, rows, std=0.5)
    return t


def router_gap(model, hidden, top_k):
    """hidden: per layer what enters its router."""
    gaps = [float("inf")]
    for layer, x in zip(model.model.layers, hidden):
        logits = torch.nn.functional.linear(x, layer.mlp.router.weight, layer.mlp.router.bias)
        best = logits.sort(dim=-1, descending=True).values
        if best.shape[-1] > top_k:
            gaps.append((best[..., top_k - 1] - best[..., top_k]).min().item())
    return min(gaps)


def write(name):
    c = CASES[name]
    directory = OUT / name
    (directory / "expected").mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(c["seed"])
    (directory / "config.json").write_text(json.dumps(config_of(c), indent=1) + "\n")
    save_file(random_weights(c, g), directory / "model.safetensors", metadata={"format": "pt"})
    for attempt in range(200):
        g.manual_seed(1000 * c["seed"] + attempt)
        tokens = torch.randint(0, c["vocab"], (1, c["tokens"]), generator=g)
        if attempt == 0:
            model = AutoModelForCausalLM.from_pretrained(
                directory, quantization_config=Mxfp4Config(dequantize=True),
                attn_implementation="eager").float().eval()
            seen = []
            for layer in model.model.layers:
                layer.post_attention_layernorm.register_forward_hook(
                    lambda _, __, out: seen.append(out.detach()))
        seen.clear()
        with torch.no_grad():
            out = model(tokens, output_hidden_states=True, use_cache=False)
        gap = router_gap(model, seen, c["top_k"])
        if gap > MIN_ROUTER_GAP:
            break
    else:
        sys.exit(f"{name}: no prompt without near ties in routing")
    rows = torch.arange(c["tokens"])
    if c["tokens"] > 300:  # the first, those around YaRN's original context, the last
        rows = torch.cat([torch.arange(0, 4064, 127), torch.arange(4064, 4128, 4),
                          torch.arange(c["tokens"] - 64, c["tokens"])])
    expected = {"tokens": tokens[0].contiguous(), "rows": rows,
                "logits": out.logits[0, rows].contiguous()}
    for l in range(len(c["layers"])):
        expected[f"x.{l}"] = out.hidden_states[l][0, rows].contiguous()
    save_file(expected, directory / "expected/model.safetensors")
    size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
    print(f"{name}: {c['tokens']} tokens, router gap {gap:.1e}, attempt {attempt}, {size} bytes")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write(case)
