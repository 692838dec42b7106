#!/usr/bin/env python3
"""Writes tests/goldens/families/<case>/: small random checkpoints of Llama, Qwen3 and Qwen3-MoE of odd
shapes in the formats that their users have, and what Hugging Face transformers computes with them
(float32 on the dequantized weights, eager attention).

  config.json, model.safetensors      the checkpoint
  expected/model.safetensors          tokens [T] i64, rows [R] i64 (positions), logits [R, V] f32,
                                      x.<layer> [R, H] f32: the residual stream that enters a layer,
                                      own_error [1] f32: the most that log-probabilities differ from
                                      those in float64

Usage: tools/write_family_goldens.py [case...]   (needs torch, transformers 5.23, safetensors)
"""
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/goldens/families"
# As in write_model_goldens.py: rounding in another order cannot choose another expert.
MIN_ROUTER_GAP = 1e-4
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # 64: kept, mixed and stretched waves in 8 pairs
E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 96,
         "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 1024,
         "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
         "tie_word_embeddings": False}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
         "intermediate_size": 224, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 1, "head_dim": 24, "vocab_size": 97, "max_position_embeddings": 1024,
         "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "rope_theta": 1e6,
         "rope_scaling": None, "tie_word_embeddings": False, "sliding_window": None,
         "use_sliding_window": False, "max_window_layers": 3}
MOE = {**QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 2,
       "num_key_value_heads": 2, "head_dim": 32, "num_experts": 7, "num_experts_per_tok": 3,
       "moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1,
       "mlp_only_layers": []}
OLD = {"rope_theta": 5e5, "rope_scaling": LLAMA3}
NEW = {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
CASES = {
    "llama": ({**LLAMA, **OLD}, "bf16"),
    "llama-tied": ({**LLAMA, **NEW, "num_attention_heads": 4, "head_dim": 22,
                    "tie_word_embeddings": True}, "bf16"),
    "llama-f16": ({**LLAMA, "rope_theta": 1e4, "num_hidden_layers": 2, "attention_bias": True}, "f16"),
    "llama-modelopt-fp8": ({**LLAMA, **NEW}, "modelopt-fp8"),
    "llama-ct-int4": ({**LLAMA, **OLD}, "ct-int4"),
    "qwen3": (QWEN3, "bf16"),
    "qwen3-modelopt": ({**QWEN3, "head_dim": 32}, "modelopt"),
    "qwen3-ct": ({**QWEN3, "head_dim": 16}, "ct"),
    "qwen3-fp8": (QWEN3, "fp8"),
    "qwen3-awq": ({**QWEN3, "head_dim": 32, "num_hidden_layers": 2}, "awq"),
    "qwen3_moe": (MOE, "bf16"),
    "qwen3_moe-over-all": ({**MOE, "norm_topk_prob": False, "num_experts_per_tok": 2}, "bf16"),
    "qwen3_moe-modelopt": (MOE, "modelopt"),
    "qwen3_moe-ct": (MOE, "ct"),
    "qwen3_moe-fp8": ({**MOE, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 144}, "fp8"),
}


def random_weights(c, g):
    h, d = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d

    def normal(*shape, std=1.0, mean=0.0):
        return (torch.randn(*shape, generator=g) * std + mean).bfloat16().float()

    def matrix(rows, cols, std=1.0):
        return normal(rows, cols, std=std * cols ** -0.5)

    t = {"model.embed_tokens.weight": normal(c["vocab_size"], h), "model.norm.weight": normal(h, std=.3, mean=1)}
    if not c["tie_word_embeddings"]:
        t["lm_head.weight"] = matrix(c["vocab_size"], h, 2)
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        t[p + "input_layernorm.weight"] = normal(h, std=.3, mean=1)
        t[p + "post_attention_layernorm.weight"] = normal(h, std=.3, mean=1)
        for name, rows, cols in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            t[p + f"self_attn.{name}_proj.weight"] = matrix(rows, cols)
            if c["attention_bias"]:
                t[p + f"self_attn.{name}_proj.bias"] = normal(rows, std=.3)
        if c["model_type"] != "llama":
            t[p + "self_attn.q_norm.weight"] = normal(d, std=.3, mean=1)
            t[p + "self_attn.k_norm.weight"] = normal(d, std=.3, mean=1)
        mlps = [(p + "mlp.", c["intermediate_size"])]
        if "num_experts" in c:
            t[p + "mlp.gate.weight"] = matrix(c["num_experts"], h, 2)
            mlps = [(p + f"mlp.experts.{e}.", c["moe_intermediate_size"]) for e in range(c["num_experts"])]
        for mlp, f in mlps:
            for name, rows, cols in (("gate", f, h), ("up", f, h), ("down", h, f)):
                t[mlp + name + "_proj.weight"] = matrix(rows, cols)
    return t


def nvfp4(w):
    """codes [N, K/2], E4M3 scales [N, K/16], g, and what they stand for."""
    n, k = w.shape
    g = w.abs().max() / 2688
    b = w.view(n, k // 16, 16)
    s = (b.abs().amax(-1) / (6 * g)).clamp(2 ** -9, 448).to(torch.float8_e4m3fn)
    x = b / (s.float() * g)[..., None]
    code = (x.abs()[..., None] - E2M1).abs().argmin(-1)
    value = torch.where(x < 0, -E2M1[code], E2M1[code]) * (s.float() * g)[..., None]
    code = (code + 8 * (x < 0)).view(n, k).to(torch.uint8)
    return code[:, ::2] | code[:, 1::2] << 4, s, g, value.view(n, k)


def int4(w, group, zero_of):
    """q [N, K] in 0..15, scales [N, K/group], zeros alike, and what they stand for."""
    n, k = w.shape
    b = w.view(n, k // group, group)
    s = (b.abs().amax(-1) / 7).half()
    zero = zero_of(s.shape)
    q = (b / s.float()[..., None] + zero[..., None]).round().clamp(0, 15)
    return q.view(n, k).int(), s, zero.int(), ((q - zero[..., None]) * s.float()[..., None]).view(n, k)


def packed(q, order=range(8)):
    """Eight of the last dimension a word, column c at nibble order[c]."""
    q = q.view(*q.shape[:-1], -1, 8).long()
    word = sum(q[..., c] << 4 * order[c] for c in range(8))
    return torch.where(word >= 2 ** 31, word - 2 ** 32, word).int()


def quantize(module, w, how, g):
    """The tensors of one linear module, and the matrix that they stand for."""
    n, k = w.shape
    if how in ("modelopt", "ct"):
        codes, s, scale, value = nvfp4(w)
        if how == "modelopt":
            return {".weight": codes, ".weight_scale": s, ".weight_scale_2": scale,
                    ".input_scale": torch.tensor(.01)}, value
        divisor = (1 / scale).reshape(1)
        value = value / scale * (1 / divisor)
        return {".weight_packed": codes, ".weight_scale": s, ".weight_global_scale": divisor,
                ".input_global_scale": torch.tensor([100.])}, value
    if how == "modelopt-fp8":
        s = w.abs().max() / 448
        codes = (w / s).to(torch.float8_e4m3fn)
        extra = {"." + module[-6] + "_scale": torch.tensor(1.)} if module.endswith(("k_proj", "v_proj")) else {}
        return {".weight": codes, ".weight_scale": s, ".input_scale": torch.tensor(.01), **extra}, codes.float() * s
    if how == "fp8":
        s = torch.rand((n + 127) // 128, (k + 127) // 128, generator=g) * .01 + .005
        spread = s.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        codes = (w / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {".weight": codes, ".weight_scale_inv": s}, codes.float() * spread
    if how == "ct-int4":
        q, s, _, value = int4(w, 32, lambda shape: torch.full(shape, 8.))
        return {".weight_packed": packed(q), ".weight_scale": s, ".weight_shape": torch.tensor([n, k])}, value
    assert how == "awq"
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    q, s, zero, value = int4(w, 32, lambda shape: torch.randint(5, 12, shape, generator=g).float())
    return {".qweight": packed(q.t().contiguous(), order), ".scales": s.t().contiguous(),
            ".qzeros": packed(zero.t().contiguous(), order)}, value


def quantization_config(how, skipped):
    if how in ("modelopt", "modelopt-fp8"):
        return {"quant_method": "modelopt", "quant_algo": "NVFP4" if how == "modelopt" else "FP8",
                "ignore": skipped}
    if how == "fp8":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [128, 128], "modules_to_not_convert": skipped}
    if how == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    weights = {"num_bits": 4, "type": "float" if how == "ct" else "int", "group_size": 16 if how == "ct" else 32,
               "strategy": "tensor_group" if how == "ct" else "group", "symmetric": True, "dynamic": False}
    return {"quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized" if how == "ct" else "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", "re:.*mlp.gate$"]}


def router_gap(model, tokens):
    gaps = [float("inf")]

    def look(module, inputs, output):
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), module.weight)
        best = logits.sort(dim=-1, descending=True).values
        k = module.top_k
        gaps.append((best[:, k - 1] - best[:, k]).min().item())

    hooks = [layer.mlp.gate.register_forward_hook(look) for layer in model.model.layers
             if hasattr(layer.mlp, "gate") and hasattr(layer.mlp.gate, "top_k")]
    with torch.no_grad():
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps)


def write(case):
    config, how = CASES[case]
    directory = OUT / case
    (directory / "expected").mkdir(parents=True, exist_ok=True)
    seed = 1 + list(CASES).index(case)
    g = torch.Generator().manual_seed(seed)
    disk, plain, skipped = {}, {}, ["lm_head"]
    for name, w in random_weights(config, g).items():
        module = name.removesuffix(".weight")
        if how not in ("bf16", "f16") and module.endswith("_proj"):
            parts, plain[name] = quantize(module, w, how, g)
            disk |= {module + part: t.contiguous() for part, t in parts.items()}
        else:
            disk[name] = w.half() if how == "f16" else w.bfloat16()
            plain[name] = disk[name].float()
            if module.endswith(".mlp.gate"):
                skipped.append(module)
    save_file(disk, directory / "model.safetensors", metadata={"format": "pt"})
    if how not in ("bf16", "f16"):
        config = {**config, "quantization_config": quantization_config(how, skipped)}
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        save_file(plain, temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "config.json").write_text(
            json.dumps({k: v for k, v in config.items() if k != "quantization_config"}))
        model, double = (AutoModelForCausalLM.from_pretrained(
            temporary, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
            for dtype in (torch.float32, torch.float64))
    for attempt in range(200):
        g.manual_seed(1000 * seed + attempt)
        tokens = torch.randint(0, config["vocab_size"], (1, 64), generator=g)
        gap = router_gap(model, tokens)
        if gap > MIN_ROUTER_GAP:
            break
    else:
        sys.exit(f"{case}: no prompt without near ties in routing")
    with torch.no_grad():
        out = model(tokens, output_hidden_states=True, use_cache=False)
        exact = double(tokens, use_cache=False)
    own = (exact.logits.log_softmax(-1) - out.logits.log_softmax(-1)).abs().max().float()
    expected = {"tokens": tokens[0].contiguous(), "rows": torch.arange(64), "logits": out.logits[0].contiguous(),
                "own_error": own.reshape(1)}
    for l in range(config["num_hidden_layers"]):
        expected[f"x.{l}"] = out.hidden_states[l][0].contiguous()
    save_file(expected, directory / "expected/model.safetensors")
    size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
    print(f"{case}: own error {own:.1e}, router gap {gap:.1e}, attempt {attempt}, {size} bytes", flush=True)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write(case)
