#!/usr/bin/env python3
"""Writes tests/goldens/families/<case>/ for models some of whose layers are recurrent: as
write_family_goldens.py does, with prompts of two whole chunks of 64 and a part. transformers has no float64
of these layers; own_error is the most that log-probabilities differ between its forms of one sum: a prompt
whole (by chunks), in pieces, and token by token. Beside what is there:

  state.<layer>, conv.<layer>   of recurrent layers, after AT tokens: [heads, key dims, value dims] and
                                [taps - 1, channels] f32 (where STATES says so)
  state_error [1] f32           as own_error, of these
  far_logits [R, V] f32         tokens from AT on at positions from FAR on, behind keys and values of which
                                those of the first PERIOD positions are repeated from AT to FAR - 1
                                (models with rotary embeddings, in BF16)
  far_error [1] f32             as own_error, of these: of sums of 70,000 terms

Usage: tools/write_hybrid_goldens.py [case...]   (needs torch, transformers 5.23, safetensors)
"""
import json
import pathlib
import re
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from write_family_goldens import MIN_ROUTER_GAP, OUT, quantization_config, quantize

TOKENS = 150
AT = 80
FAR = 70_000
PERIOD = 64
FAR_TOKENS = 24
STATES = ("qwen3_next", "qwen3_5", "nemotron_h")
SEEDS = {"qwen3_5": 8}  # the MTP layer of tests/goldens/mtp belongs to it
NEXT = {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 5, "full_attention_interval": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "rope_scaling": None, "linear_conv_kernel_dim": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "num_experts": 6,
        "num_experts_per_tok": 3, "norm_topk_prob": True, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 96, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "tie_word_embeddings": False}
NEW_SPELLING = {
    **{k: v for k, v in NEXT.items()
       if k not in ("full_attention_interval", "rope_theta", "rope_scaling", "partial_rotary_factor")},
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}}
# Of the ...ForConditionalGeneration repos: text_config, and weights under model.language_model.
TEXT = {**{k: v for k, v in NEXT.items()
           if k not in ("architectures", "full_attention_interval", "rope_theta", "rope_scaling", "norm_topk_prob",
                        "partial_rotary_factor", "decoder_sparse_step", "mlp_only_layers")},
        "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_value_heads": 6, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
MOE = {k: v for k, v in {**TEXT, "model_type": "qwen3_5_moe_text"}.items() if k != "intermediate_size"}
DENSE = {k: v for k, v in {**TEXT, "model_type": "qwen3_5_text"}.items() if "expert" not in k and "moe" not in k}
# time_step_limit as the hub has it; num_hidden_layers is what the pattern says.
NEMOTRON = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 64,
            "hybrid_override_pattern": "MEM*EM-*E", "num_hidden_layers": 9, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2,
            "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 32, "intermediate_size": 80, "n_routed_experts": 8,
            "num_experts_per_tok": 3, "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 32,
            "routed_scaling_factor": 2.5, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 4096,
            "time_step_limit": [0.0, float("inf")], "vocab_size": 96, "tie_word_embeddings": False}
# What NVIDIA's checkpoints have in NVFP4; the rest is BF16.
FP4 = re.compile(r"(mlp\.experts\.\d+|mlp\.shared_expert)\.(gate|up|down)_proj$|self_attn\.o_proj$"
                 r"|linear_attn\.out_proj$|mixer\.(experts\.\d+|shared_experts)\.(up|down)_proj$"
                 r"|mixer\.(in|out)_proj$")
# NVIDIA's Qwen3.6: experts and the head in NVFP4, attention and delta nets in FP8 by tensor.
FP8 = re.compile(r"\.(q|k|v|o)_proj$|\.linear_attn\.(in_proj_qkv|in_proj_z|out_proj)$")
# Qwen's own: all but the gates' rows, routers and the head, in blocks of 128 x 128.
FP8_BLOCKS = re.compile(r"_proj$|\.in_proj_qkvz$")


AROUND_ONE = re.compile(r"linear_attn\.norm|mixer\.norm|norm_f|layers\.\d+\.norm\.")


def format_of(module, how):
    """How quantize() is to write a linear module; None: in BF16."""
    if how == "fp8":
        return how if FP8_BLOCKS.search(module) else None
    if how == "mixed" and FP8.search(module):
        return "modelopt-fp8"
    if how == "mixed":
        return "modelopt" if module == "lm_head" or FP4.search(module) else None
    return how if how != "bf16" and FP4.search(module) else None


CASES = {
    "qwen3_next": (NEXT, "bf16"),
    # The heads that GPU kernels are written for, three value heads to a key head; all experts are chosen, so
    # that bf16 chooses no others.
    "qwen3_next-128": ({**NEXT, "hidden_size": 128, "num_hidden_layers": 2, "full_attention_interval": 2,
                        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256,
                        "linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 128,
                        "linear_value_head_dim": 128, "num_experts": 4, "num_experts_per_tok": 4,
                        "vocab_size": 64}, "bf16"),
    "qwen3_next-spelling": ({**NEW_SPELLING, "linear_num_value_heads": 2, "norm_topk_prob": False}, "bf16"),
    "qwen3_next-modelopt": ({**NEXT, "num_hidden_layers": 4}, "modelopt"),
    "qwen3_next-ct": ({**NEW_SPELLING, "tie_word_embeddings": True}, "ct"),
    "qwen3_5_moe": (MOE, "bf16"),
    "qwen3_5_moe-modelopt": (MOE, "modelopt"),
    "qwen3_5_moe-mixed": (MOE, "mixed"),
    "qwen3_5": ({**DENSE, "tie_word_embeddings": True}, "bf16"),
    "nemotron_h": (NEMOTRON, "bf16"),
    "nemotron_h-groups": ({**{k: v for k, v in NEMOTRON.items() if k != "hybrid_override_pattern"},
                           "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
                           "num_hidden_layers": 5, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
                           "norm_topk_prob": False, "routed_scaling_factor": 0.75},
                          "bf16"),
    "nemotron_h-modelopt": ({**NEMOTRON, "hybrid_override_pattern": "MEM*E-", "num_hidden_layers": 6}, "modelopt"),
    # The heads of Nemotron-3-Nano; all experts are chosen, so that bf16 chooses no others.
    "nemotron_h-128": ({**NEMOTRON, "hybrid_override_pattern": "MEM*", "num_hidden_layers": 4, "hidden_size": 128,
                        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "mamba_num_heads": 8,
                        "mamba_head_dim": 64, "n_groups": 1, "ssm_state_size": 128, "n_routed_experts": 4,
                        "num_experts_per_tok": 4, "moe_intermediate_size": 64, "vocab_size": 64}, "bf16"),
    # For texts longer than those that it was trained on, as its publisher spells it.
    "qwen3_next-yarn": ({**NEXT, "num_hidden_layers": 4, "head_dim": 64,
                         "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                          "original_max_position_embeddings": 1024}}, "bf16"),
    "qwen3_next-fp8": ({**NEXT, "hidden_size": 144, "num_hidden_layers": 2, "full_attention_interval": 2}, "fp8"),
    # A shared expert of the others' width and format, as those that are published have.
    "qwen3_next-alike": ({**NEXT, "num_hidden_layers": 4, "shared_expert_intermediate_size": 32}, "modelopt"),
    "nemotron_h-alike": ({**NEMOTRON, "hybrid_override_pattern": "MEM*E-", "num_hidden_layers": 6,
                          "moe_shared_expert_intermediate_size": 96}, "modelopt"),
    "qwen3_5_moe-alike": ({**MOE, "shared_expert_intermediate_size": 32}, "bf16"),
    # Value heads by whole groups of rows.
    "qwen3_next-joined": ({**NEXT, "num_hidden_layers": 4, "linear_num_key_heads": 8, "linear_num_value_heads": 16,
                           "linear_key_head_dim": 8, "linear_value_head_dim": 8}, "bf16"),
    "qwen3_5_moe-joined": ({**MOE, "linear_num_key_heads": 4, "linear_num_value_heads": 16,
                            "linear_key_head_dim": 8, "linear_value_head_dim": 8}, "bf16"),
}


def fill(name, p, g):
    """Random values of a size that keeps every path visible in the output."""
    def normal(std, mean=0.0):
        return torch.randn(p.shape, generator=g) * std + mean
    leaf = name.split(".")[-1]
    if leaf == "A_log":
        value = torch.log(torch.rand(p.shape, generator=g) * 3.95 + 0.05)
    elif leaf == "dt_bias":
        value = normal(2.0, -3.5)
    elif leaf == "D":
        value = normal(0.3, 1.0)
    elif leaf == "e_score_correction_bias":
        value = torch.rand(p.shape, generator=g) * 0.2 - 0.1
    elif "conv1d" in name:
        value = normal(0.5 if leaf == "weight" else 0.1)
    elif p.dim() == 1:  # norms: of Qwen's those of delta nets are the only ones around one
        value = normal(0.2, 1.0 if AROUND_ONE.search(name) else 0.0)
    elif "embed" in name:
        value = normal(1.0)
    else:
        value = normal(p.shape[-1] ** -0.5 * (2.0 if "gate.weight" in name or "lm_head" in name else 1.0))
    return value.bfloat16().float()


def as_published(config, disk):
    """The config and tensors of a text model as the repos of models that see images have them."""
    kind = config["model_type"].removesuffix("_text")
    names = {"qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration", "qwen3_5": "Qwen3_5ForConditionalGeneration"}
    renamed = {re.sub(r"^model\.", "model.language_model.", name): w for name, w in disk.items()}
    for name in [n for n in renamed if n.endswith(".experts.0.gate_proj.weight")]:  # those in BF16 are fused
        base, e = name.removesuffix("0.gate_proj.weight"), 0
        both, down = [], []
        if renamed[name].dtype != torch.bfloat16:
            continue
        while f"{base}{e}.gate_proj.weight" in renamed:
            both.append(torch.cat([renamed.pop(f"{base}{e}.{of}_proj.weight") for of in ("gate", "up")]))
            down.append(renamed.pop(f"{base}{e}.down_proj.weight"))
            e += 1
        renamed |= {base + "gate_up_proj": torch.stack(both), base + "down_proj": torch.stack(down)}
    renamed["model.visual.patch_embed.proj.weight"] = torch.zeros(8, 3, 2, 4, 4).bfloat16()
    renamed["mtp.norm.weight"] = torch.zeros(config["hidden_size"]).bfloat16()
    return ({"architectures": [names[kind]], "model_type": kind, "text_config": config,
             "tie_word_embeddings": config["tie_word_embeddings"],
             "vision_config": {"model_type": kind, "hidden_size": 8}}, renamed)


def router_gap(model, tokens):
    """The smallest difference between the weights of the last expert chosen and the first left out."""
    gaps, hooks = [], []
    for module in model.modules():
        if "topkrouter" in type(module).__name__.lower():
            def look(mod, inputs, output):
                p = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), mod.weight)
                if mod.top_k == p.shape[-1]:
                    return
                if hasattr(mod, "e_score_correction_bias"):
                    scores = p.sigmoid() + mod.e_score_correction_bias
                    groups = scores.view(len(scores), mod.num_group, -1)
                    of = groups.topk(2).values.sum(-1).sort(descending=True)
                    if mod.topk_group < mod.num_group:
                        gaps.append((of.values[:, mod.topk_group - 1] - of.values[:, mod.topk_group]).min().item())
                    left = of.indices[:, mod.topk_group:, None].expand(-1, -1, groups.shape[-1])
                    best = groups.scatter(1, left, float("-inf")).flatten(1).sort(descending=True).values
                else:
                    best = p.softmax(-1).sort(dim=-1, descending=True).values
                gaps.append((best[:, mod.top_k - 1] - best[:, mod.top_k]).min().item())
            hooks.append(module.register_forward_hook(look))
    with torch.no_grad():
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps, default=float("inf"))


def without_dt_floor(model):
    """transformers keeps dt above time_step_min in prompts and not in decode; vLLM and SGLang never do."""
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))


def in_pieces(model, tokens, ends, cache=None, begin=0):
    """Logits where the text is cut at `ends`, and what is cached of it."""
    rows = []
    for end in ends:
        out = model(tokens[:, begin:end], past_key_values=cache, use_cache=True)
        cache, begin = out.past_key_values, end
        rows.append(out.logits[0])
    return torch.cat(rows), cache


def far(model, tokens):
    """Rows at positions from FAR on, and the most that log-probabilities differ by."""
    def rows(before, ends):
        cache = in_pieces(model, tokens, before)[1]
        for layer in cache.layers:
            if getattr(layer, "keys", None) is not None:
                at = torch.cat([torch.arange(AT), torch.arange(AT, FAR) % PERIOD])
                layer.keys, layer.values = layer.keys[:, :, at], layer.values[:, :, at]
        assert cache.get_seq_length() == FAR
        return in_pieces(model, tokens, ends, cache, AT)[0]
    end = AT + FAR_TOKENS
    whole = rows((AT,), (end,))
    others = rows((AT,), (AT + 1, AT + 8, end)), rows(range(1, AT + 1), range(AT + 1, end + 1))
    error = max((whole.log_softmax(-1) - other.log_softmax(-1)).abs().max() for other in others)
    return whole, error.reshape(1)


def states(model, config, tokens):
    """What recurrent layers carry after AT tokens, in nibble's order of dims, by name."""
    def of(ends):
        cache, found = in_pieces(model, tokens[:, :AT], ends)[1], {}
        for layer in range(config["num_hidden_layers"]):
            at = cache.layers[layer]
            if getattr(at, "recurrent_states", None) is None:
                continue
            state, conv = (t[0] if isinstance(t, (list, dict)) else t
                           for t in (at.recurrent_states, at.conv_states))
            if config["model_type"] == "nemotron_h":  # [heads, value dims, key dims] there
                state = state.transpose(-1, -2)
            found[f"state.{layer}"] = state[0].float().clone()
            found[f"conv.{layer}"] = conv[0, :, -3:].t().float().clone()
        return found
    whole, others = of((AT,)), (of((1, 64, 65, AT)), of(range(1, AT + 1)))
    error = max((whole[name] - other[name]).abs().max() for other in others for name in whole)
    return {**whole, "state_error": error.reshape(1)}


def write(case):
    config, how = CASES[case]
    directory = OUT / case
    (directory / "expected").mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(SEEDS.get(case, 1 + list(CASES).index(case)))
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        (temporary / "config.json").write_text(json.dumps(config))
        from transformers import AutoConfig
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(temporary)).float()
        with torch.no_grad():
            for name, p in made.named_parameters():
                p.copy_(fill(name, p, g))
            for name, p in made.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    p.copy_(fill(name, p, g))
        made.bfloat16().save_pretrained(temporary)
        from safetensors.torch import load_file
        disk, plain, skipped, mixed = {}, {}, [], {}
        for name, w in load_file(temporary / "model.safetensors").items():
            module = name.removesuffix(".weight")
            if of := format_of(module, how):
                parts, plain[name] = quantize(module, w.float(), of, g)
                if of == "fp8":  # as Qwen3.5's, by scales in BF16
                    scale = parts[".weight_scale_inv"].bfloat16()
                    parts[".weight_scale_inv"] = scale
                    spread = scale.float().repeat_interleave(128, 0)[:w.shape[0]]
                    plain[name] = parts[".weight"].float() * spread.repeat_interleave(128, 1)[:, :w.shape[1]]
                algorithm = {"modelopt": "W4A16_NVFP4", "modelopt-fp8": "FP8"}.get(of)
                mixed[re.sub(r"(\.experts)\..*", r"\1", module)] = {"quant_algo": algorithm}
                disk |= {module + part: t.contiguous() for part, t in parts.items()}
            else:
                disk[name], plain[name] = w, w.float()
                if name.endswith(".weight"):
                    skipped.append(module)
        # Some publishers keep these in float32.
        for name in disk:
            if how == "ct" and name.endswith(("A_log", "dt_bias", "linear_attn.norm.weight")):
                disk[name] = disk[name].float()
        published = config
        if config["model_type"].endswith("_text"):
            if how != "bf16":
                skipped = [re.sub(r"^model\.", "model.language_model.", name) for name in skipped]
                mixed = {re.sub(r"^model\.", "model.language_model.", k): v for k, v in mixed.items()}
            published, disk = as_published(config, disk)
        save_file(disk, directory / "model.safetensors", metadata={"format": "pt"})
        save_file(plain, temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "config.json").write_text(json.dumps(config))
        model = AutoModelForCausalLM.from_pretrained(temporary, dtype=torch.float32, attn_implementation="eager",
                                                     experts_implementation="eager").eval()
        without_dt_floor(model)
    if how != "bf16":
        said = ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": mixed}
                if how == "mixed" else quantization_config(how, skipped))
        if how == "ct":
            said["ignore"] = skipped
        published = {**published, "quantization_config": said}
    (directory / "config.json").write_text(json.dumps(published, indent=1) + "\n")
    for attempt in range(400):
        g.manual_seed(1000 + attempt)
        tokens = torch.randint(0, config["vocab_size"], (1, TOKENS), generator=g)
        gap = router_gap(model, tokens)
        if gap > MIN_ROUTER_GAP:
            break
    else:
        sys.exit(f"{case}: no prompt without near ties in routing")
    with torch.no_grad():
        out = model(tokens, output_hidden_states=True, use_cache=False)
        whole = out.logits[0].log_softmax(-1)
        own = max((in_pieces(model, tokens, ends)[0].log_softmax(-1) - whole).abs().max()
                  for ends in ((1, 64, 65, 100, TOKENS), range(1, TOKENS + 1))).float()
        more = states(model, config, tokens) if case in STATES else {}
        if how == "bf16" and config["model_type"] != "nemotron_h":
            more["far_logits"], more["far_error"] = far(model, tokens)
    expected = {"tokens": tokens[0].contiguous(), "rows": torch.arange(TOKENS), "logits": out.logits[0].contiguous(),
                "own_error": own.reshape(1), **{name: t.contiguous() for name, t in more.items()}}
    for layer in range(config["num_hidden_layers"]):
        expected[f"x.{layer}"] = out.hidden_states[layer][0].contiguous()
    save_file(expected, directory / "expected/model.safetensors")
    size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
    print(f"{case}: own error {own:.1e}, router gap {gap:.1e}, attempt {attempt}, {size} bytes", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        write(case)
