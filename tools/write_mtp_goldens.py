#!/usr/bin/env python3
"""Writes tests/goldens/mtp/<case>/: random MTP layers for models of tests/goldens/families, and what an
independent forward pass makes of them: transformers' own decoder layer (it has no MTP) behind the join of
token and hidden row, as vLLM and SGLang run it: z = fc([norm(embed(x_{t+1})); norm(h_t)]), h_t what the
target's last norm gives; a layer of gated attention and experts or an MLP; mtp.norm; the target's head. A
chain of drafts goes on from what mtp.norm gave.

  config.json, model.safetensors      the target's config, the tensors mtp.*
  expected/model.safetensors          logits [T - 1, V] f32: of position t, for token t + 2; draft_ids [N] i64,
                                      the likeliest behind the last of them, and draft_logits [N, V] f32;
                                      own_error [1] f32: the most that log-probabilities differ where the
                                      target's rows come token by token

Usage: tools/write_mtp_goldens.py [case...]   (needs torch, transformers 5.23, safetensors)
"""
import importlib
import json
import pathlib
import re
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from write_family_goldens import MIN_ROUTER_GAP, quantize
from write_hybrid_goldens import OUT as FAMILIES, fill

OUT = FAMILIES.parent / "mtp"
DRAFTS = 5
LINEAR = re.compile(r"(\.self_attn\.\w_proj|\.mlp\.(experts\.\d+|shared_expert)\.\w+_proj|^mtp\.fc)$")
# Case: the target, and how the layer's linear modules are written.
CASES = {"qwen3_next": ("qwen3_next", None), "qwen3_next-modelopt": ("qwen3_next", "modelopt"),
         "qwen3_next-fp8": ("qwen3_next", "modelopt-fp8"), "qwen3_next-128": ("qwen3_next-128", None),
         "qwen3_5_moe": ("qwen3_5_moe", None), "qwen3_5": ("qwen3_5", None)}


def load_target(directory):
    config = json.loads((directory / "config.json").read_text())
    is_text = "text_config" in config
    text = AutoConfig.for_model(**config["text_config"]) if is_text else AutoConfig.from_pretrained(directory)
    kinds = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
    if not is_text:
        return AutoModelForCausalLM.from_pretrained(directory, **kinds).eval()
    model = AutoModelForCausalLM.from_config(text, **kinds).eval()
    tensors = {name.replace("model.language_model.", "model."): w.float()
               for name, w in load_file(directory / "model.safetensors").items()
               if not name.startswith(("mtp.", "model.visual."))}
    if model.config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model


class Mtp(torch.nn.Module):
    def __init__(self, target):
        super().__init__()
        code = importlib.import_module(type(target).__module__)
        prefix = type(target).__name__.removesuffix("ForCausalLM")
        c = type(target.config)(**{**target.config.to_dict(), "num_hidden_layers": 1,
                                   "layer_types": ["full_attention"]})
        c._attn_implementation = c._experts_implementation = "eager"

        def norm():
            return getattr(code, prefix + "RMSNorm")(c.hidden_size, eps=c.rms_norm_eps)
        self.fc = torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.layers = torch.nn.ModuleList([getattr(code, prefix + "DecoderLayer")(c, 0)])

    def forward(self, target, ids, hidden):
        """Rows [t] of ids t + 1 and the target's rows t: mtp.norm's."""
        e = target.model.embed_tokens(ids)
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(hidden)], -1))
        n = x.shape[1]
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), -torch.inf).triu(1)[None, None]
        angles = target.model.rotary_emb(x, positions)
        return self.norm(self.layers[0](x, position_embeddings=angles, attention_mask=mask, position_ids=positions))


def least_gap(mtp, run):
    """The smallest difference between the weights of the last expert chosen and the first left out."""
    gaps = [float("inf")]

    def look(module, inputs, output):
        p = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), module.weight).softmax(-1)
        best = p.sort(dim=-1, descending=True).values
        if module.top_k < p.shape[-1]:
            gaps.append((best[:, module.top_k - 1] - best[:, module.top_k]).min().item())
    hooks = [m.register_forward_hook(look) for m in mtp.modules() if "TopKRouter" in type(m).__name__]
    result = run()
    for hook in hooks:
        hook.remove()
    return min(gaps), result


def on_disk(state, how, g):
    """The tensors of a checkpoint, and the values that they stand for."""
    disk, plain = {}, {}
    for name, w in state.items():
        module = name.removesuffix(".weight")
        if how and LINEAR.search(module):
            parts, plain[name] = quantize(module, w.float(), how, g)
            disk |= {module + part: t.contiguous() for part, t in parts.items()}
        else:
            disk[name], plain[name] = w.bfloat16().contiguous(), w.float()
    return disk, plain


def split_experts(state):
    """Experts one by one, as Qwen3-Next's checkpoints have them."""
    split = {}
    for name, w in state.items():
        base, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or not base.endswith("experts"):
            split[name] = w
            continue
        for e in range(w.shape[0]):
            parts = dict(zip(("gate_proj", "up_proj"), w[e].chunk(2))) if last == "gate_up_proj" else {last: w[e]}
            split |= {f"{base}.{e}.{of}.weight": p for of, p in parts.items()}
    return split


def fuse_experts(plain):
    """What split_experts() has split."""
    fused, parts = {}, {}
    for name, w in plain.items():
        match = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)\.weight", name)
        if not match:
            fused[name] = w
            continue
        parts.setdefault(match[1], {})[int(match[2]), match[3]] = w
    for base, of in parts.items():
        count = 1 + max(e for e, _ in of)
        fused[base + ".gate_up_proj"] = torch.stack(
            [torch.cat([of[e, "gate_proj"], of[e, "up_proj"]]) for e in range(count)])
        fused[base + ".down_proj"] = torch.stack([of[e, "down_proj"] for e in range(count)])
    return fused


def chain(target, mtp, tokens, hidden):
    """Logits of all positions, then of a chain of the likeliest drafts."""
    ids, rows, drafts = tokens[:, 1:], hidden[:, :-1], []
    for i in range(DRAFTS):
        m = mtp(target, ids, rows)
        logits = target.lm_head(m)[0]
        if i == 0:
            whole = logits
        drafts.append(logits[-1])
        ids = torch.cat([ids, drafts[-1].argmax()[None, None]], 1)
        rows = torch.cat([rows, m[:, -1:]], 1)
    return whole, torch.stack(drafts)


@torch.no_grad()
def write(case):
    name, how = CASES[case]
    directory = OUT / case
    (directory / "expected").mkdir(parents=True, exist_ok=True)
    target = load_target(FAMILIES / name)
    tokens = load_file(FAMILIES / name / "expected/model.safetensors")["tokens"][None]
    hidden = target.model(tokens, use_cache=False).last_hidden_state
    cache, rows = None, []
    for t in range(tokens.shape[1]):
        out = target.model(tokens[:, t:t + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.last_hidden_state)
    for attempt in range(400):
        g = torch.Generator().manual_seed(2000 + 100 * list(CASES).index(case) + attempt)
        mtp = Mtp(target).eval()
        for key, p in mtp.named_parameters():
            p.copy_(fill(key, p, g))
        state = {"mtp." + key: w for key, w in mtp.state_dict().items()}
        disk, plain = on_disk(split_experts(state) if name.startswith("qwen3_next") else state, how, g)
        mtp.load_state_dict({key.removeprefix("mtp."): w for key, w in fuse_experts(plain).items()})
        gap, (logits, drafts) = least_gap(mtp, lambda: chain(target, mtp, tokens, hidden))
        best = drafts.topk(2).values
        if gap > MIN_ROUTER_GAP and (best[:, 0] - best[:, 1]).min() > 0.01:
            break
    else:
        sys.exit(f"{case}: no layer without near ties")
    others, _ = chain(target, mtp, tokens, torch.cat(rows, 1))
    own = (others.log_softmax(-1) - logits.log_softmax(-1)).abs().max()
    shutil.copy(FAMILIES / name / "config.json", directory / "config.json")
    save_file(disk, directory / "model.safetensors", metadata={"format": "pt"})
    save_file({"logits": logits.contiguous(), "draft_logits": drafts.contiguous(),
               "draft_ids": drafts.argmax(-1), "own_error": own.reshape(1)},
              directory / "expected/model.safetensors")
    size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
    print(f"{case}: own error {own:.1e}, router gap {gap:.1e}, attempt {attempt}, {size} bytes", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        write(case)
