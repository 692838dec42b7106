"""gpt-oss in torch: one forward for training (no cache, bfloat16 autocast) and one for greedy decoding.

Shapes: B rows, T tokens, H hidden, N query heads, K key/value heads, D head dim, E experts, I
intermediate. Expert weights have the orientation of the checkpoint: [E, 2I, H] and [E, H, I].
"""

import dataclasses
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import mxfp4


@dataclasses.dataclass
class Config:
    vocab_size: int = 3072
    hidden_size: int = 256
    intermediate_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 64
    num_local_experts: int = 8
    num_experts_per_tok: int = 4
    sliding_window: int = 32
    rms_norm_eps: float = 1e-5
    swiglu_limit: float = 7.0
    rope_theta: float = 150000.0
    factor: float = 32.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_length: int = 4096
    truncate: bool = False

    def is_sliding(self, layer):
        return layer % 2 == 0


def config_json(config, eos, pad):
    layers = [
        "sliding_attention" if config.is_sliding(i) else "full_attention"
        for i in range(config.num_hidden_layers)
    ]
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": eos,
        "experts_per_token": config.num_experts_per_tok,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initial_context_length": config.original_length,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "layer_types": layers,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": config.num_attention_heads,
        "num_experts_per_tok": config.num_experts_per_tok,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "num_local_experts": config.num_local_experts,
        "output_router_logits": False,
        "pad_token_id": pad,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": {
            "beta_fast": config.beta_fast,
            "beta_slow": config.beta_slow,
            "factor": config.factor,
            "original_max_position_embeddings": config.original_length,
            "rope_type": "yarn",
            "truncate": config.truncate,
        },
        "rope_theta": config.rope_theta,
        "router_aux_loss_coef": 0.9,
        "sliding_window": config.sliding_window,
        "swiglu_limit": config.swiglu_limit,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def rotation(config, positions):
    """cos and sin [..., D/2] of YaRN, with its concentration."""
    half = config.head_dim // 2
    index = torch.arange(half, dtype=torch.float64, device=positions.device)
    frequency = config.rope_theta ** (2 * index / config.head_dim)
    edge = (
        lambda beta: half
        * math.log(config.original_length / (beta * 2 * math.pi))
        / math.log(config.rope_theta)
    )
    low, high = edge(config.beta_fast), edge(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    ramp = ((index - low) / (high - low)).clamp(0, 1)
    inverse = (ramp / (config.factor * frequency) + (1 - ramp) / frequency).float()
    angle = positions.float().unsqueeze(-1) * inverse
    concentration = 0.1 * math.log(config.factor) + 1
    return angle.cos() * concentration, angle.sin() * concentration


def rotate(x, cos, sin):
    """x [B, heads, T, D]; cos, sin [B or 1, 1, T, D/2]."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class RmsNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.hidden_size)), config.rms_norm_eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def full_attention(q, k, v, sinks, scale):
    """Causal attention with sinks: the sink is the score of one more key whose value is zero.

    The key stands before position 0; its score comes from one more dimension of the heads.
    """
    batch, heads, length, dim = q.shape
    wide = lambda x: F.pad(x, (0, 8, 1, 0))
    q, k, v = wide(q), wide(k), wide(v)
    unit = (torch.arange(dim + 8, device=q.device) == dim).to(q.dtype)
    sink_key = (sinks / scale).to(q.dtype).view(1, heads, 1, 1) * unit
    first = (torch.arange(length + 1, device=q.device) == 0).to(q.dtype).view(1, 1, -1, 1)
    out = F.scaled_dot_product_attention(
        q + unit, k + first * sink_key, v, is_causal=True, scale=scale
    )
    return out[:, :, 1:, :dim]


def sink_softmax(scores, sinks):
    """scores [..., S] float32, sinks broadcast over all but the last dimension."""
    top = torch.maximum(scores.amax(-1, keepdim=True), sinks)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sinks - top))


def window_attention(q, k, v, sinks, scale, window):
    """Causal attention over the last `window` keys, in blocks of that size: T must be a multiple."""
    batch, heads, length, dim = q.shape
    blocks = lambda x: x.reshape(batch, heads, length // window, window, dim)
    with_previous = lambda x: torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3)
    q, k, v = blocks(q), with_previous(blocks(k)), with_previous(blocks(v))
    scores = (q @ k.transpose(-1, -2)).float() * scale  # [B, N, T/W, W, 2W]
    row = torch.arange(window, device=q.device).view(-1, 1)
    column = torch.arange(2 * window, device=q.device).view(1, -1)
    allowed = (column > row) & (column <= row + window)
    first = torch.arange(length // window, device=q.device).view(-1, 1, 1) == 0
    allowed = allowed & ~(first & (column < window))
    scores = scores.masked_fill(~allowed, -torch.inf)
    weights = sink_softmax(scores, sinks.float().view(1, heads, 1, 1, 1))
    return (weights.to(v.dtype) @ v).reshape(batch, heads, length, dim)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        c, self.config = config, config
        self.sliding = c.is_sliding(layer)
        width, narrow = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj, self.k_proj = nn.Linear(c.hidden_size, width), nn.Linear(c.hidden_size, narrow)
        self.v_proj, self.o_proj = nn.Linear(c.hidden_size, narrow), nn.Linear(width, c.hidden_size)
        # Sinks begin high, so that heads learn to depend on them.
        self.sinks = nn.Parameter(
            torch.full((c.num_attention_heads,), 2.0 if self.sliding else 3.0)
        )

    def project(self, x, cos, sin):
        split = lambda y: y.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
        return (
            rotate(split(self.q_proj(x)), cos, sin),
            rotate(split(self.k_proj(x)), cos, sin),
            split(self.v_proj(x)),
        )

    def repeat(self, x):
        return x.repeat_interleave(
            self.config.num_attention_heads // self.config.num_key_value_heads, 1
        )

    def forward(self, x, cos, sin):
        q, k, v = self.project(x, cos, sin)
        k, v, scale = self.repeat(k), self.repeat(v), self.config.head_dim**-0.5
        if self.sliding:
            out = window_attention(q, k, v, self.sinks, scale, self.config.sliding_window)
        else:
            out = full_attention(q, k, v, self.sinks, scale)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def decode(self, x, cos, sin, cache, start, allowed):
        """Keys and values join the cache [B, K, S, D] at `start`; allowed [B, 1, T, S]."""
        q, k, v = self.project(x, cos, sin)
        end = start + x.shape[1]
        cache[0][:, :, start:end], cache[1][:, :, start:end] = k, v
        k, v = self.repeat(cache[0][:, :, :end]), self.repeat(cache[1][:, :, :end])
        scores = (q @ k.transpose(-1, -2)) * self.config.head_dim**-0.5
        weights = sink_softmax(scores.masked_fill(~allowed, -1e30), self.sinks.view(1, -1, 1, 1))
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Router and experts; every expert computes every token, those not chosen weigh nothing."""

    def __init__(self, config):
        super().__init__()
        c, self.config = config, config
        self.quantize = True
        self.router = nn.Linear(c.hidden_size, c.num_local_experts)
        self.gate_up_proj = nn.Parameter(
            torch.empty(c.num_local_experts, 2 * c.intermediate_size, c.hidden_size)
        )
        self.gate_up_proj_bias = nn.Parameter(
            torch.zeros(c.num_local_experts, 2 * c.intermediate_size)
        )
        self.down_proj = nn.Parameter(
            torch.empty(c.num_local_experts, c.hidden_size, c.intermediate_size)
        )
        self.down_proj_bias = nn.Parameter(torch.zeros(c.num_local_experts, c.hidden_size))

    def forward(self, x):
        """Returns the output and the load-balancing loss."""
        c = self.config
        logits = self.router(x).float()
        chosen, index = logits.topk(c.num_experts_per_tok, -1)
        share = torch.zeros_like(logits).scatter(-1, index, chosen.softmax(-1))  # [B, T, E]
        used = (share > 0).float().mean((0, 1)) / c.num_experts_per_tok
        balance = c.num_local_experts * (used.detach() * logits.softmax(-1).mean((0, 1))).sum()
        up_weight, down_weight = self.gate_up_proj, self.down_proj
        if self.quantize:
            up_weight, down_weight = mxfp4.fake_quantize(up_weight), mxfp4.fake_quantize(
                down_weight
            )
        both = F.linear(x, up_weight.flatten(0, 1), self.gate_up_proj_bias.flatten())
        both = both.unflatten(
            -1, (c.num_local_experts, c.intermediate_size, 2)
        ).float()  # interleaved
        gate = both[..., 0].clamp(max=c.swiglu_limit)
        up = both[..., 1].clamp(-c.swiglu_limit, c.swiglu_limit)
        act = gate * torch.sigmoid(1.702 * gate) * (up + 1) * share.unsqueeze(-1)
        out = (
            F.linear(act.flatten(-2), down_weight.transpose(0, 1).flatten(1))
            + share @ self.down_proj_bias
        )
        return out, balance


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(config), RmsNorm(config)
        self.self_attn, self.mlp = Attention(config, layer), Experts(config)


class GptOss(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RmsNorm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @torch.no_grad()
    def initialize(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                residual = (
                    1 / math.sqrt(2 * self.config.num_hidden_layers)
                    if "o_proj" in name or "down_proj" in name
                    else 1
                )
                p.normal_(0, 0.5 if "embed" in name else 0.05 * residual, generator=generator)
            elif "router.bias" in name:  # fixed and large, so that the routing depends on it
                spread = torch.linspace(-2, 2, self.config.num_local_experts)
                p.copy_(spread[torch.randperm(len(spread), generator=generator)])
                p.requires_grad_(False)
            elif "bias" in name:
                p.zero_()

    def forward(self, ids):
        """ids [B, T]; returns logits [B, T, V], the mean load-balancing loss of the layers, and no drafts."""
        x = self.embed_tokens(ids)
        cos, sin = (
            t.view(1, 1, *t.shape)
            for t in rotation(self.config, torch.arange(ids.shape[1], device=ids.device))
        )
        balance = 0.0
        for layer in self.layers:
            x = x + layer.self_attn(layer.input_layernorm(x), cos, sin)
            out, loss = layer.mlp(layer.post_attention_layernorm(x))
            x, balance = x + out, balance + loss / len(self.layers)
        return self.lm_head(self.norm(x)), balance, None

    def compiled(self, losses):
        """The function of a step's losses, fast."""
        return torch.compile(losses, dynamic=False)

    def new_cache(self, batch, length, device):
        shape = (2, batch, self.config.num_key_value_heads, length, self.config.head_dim)
        return [torch.zeros(shape, device=device) for _ in self.layers]

    @torch.no_grad()
    def decode(self, ids, cache, start, padding, last_only=True):
        """Logits of ids [B, T] at cache slots start...; padding [B] counts the dead slots on the left."""
        slots = torch.arange(start, start + ids.shape[1], device=ids.device)
        keys = torch.arange(start + ids.shape[1], device=ids.device)
        causal = (keys <= slots.unsqueeze(1)) & (keys >= padding.view(-1, 1, 1))
        near = causal & (keys > slots.unsqueeze(1) - self.config.sliding_window)
        cos, sin = (
            t.unsqueeze(1)
            for t in rotation(self.config, (slots - padding.unsqueeze(1)).clamp_min(0))
        )
        x = self.embed_tokens(ids)
        for layer, state in zip(self.layers, cache):
            allowed = (near if layer.self_attn.sliding else causal).unsqueeze(1)
            x = x + layer.self_attn.decode(
                layer.input_layernorm(x), cos, sin, state, start, allowed
            )
            x = x + layer.mlp(layer.post_attention_layernorm(x))[0]
        return self.lm_head(self.norm(x[:, -1:] if last_only else x))


def _file_name(name):
    """Our parameter name as the checkpoint spells it."""
    name = name.replace("mlp.gate_up", "mlp.experts.gate_up").replace(
        "mlp.down", "mlp.experts.down"
    )
    return name if name.startswith("lm_head") else "model." + name


def build():
    return GptOss(Config())


def save(model, path, _):
    """Writes model.safetensors in gpt-oss's layout: experts in MXFP4, all else in BF16."""
    tensors = {}
    for name, p in model.state_dict().items():
        key, value = _file_name(name), p.detach().cpu()
        if key.endswith(("gate_up_proj", "down_proj")):
            tensors[key + "_blocks"], tensors[key + "_scales"] = mxfp4.pack(value)
        else:
            tensors[key] = value.to(torch.bfloat16)
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(path), metadata={"format": "pt"})


def load(path, swap_nibbles=False):
    """The model of a checkpoint directory, dequantized to float32."""
    path = pathlib.Path(path)
    read = json.loads((path / "config.json").read_text())
    known = {f.name for f in dataclasses.fields(Config)}
    values = {k: v for k, v in read.items() if k in known}
    scaling = read["rope_scaling"]
    values |= {k: scaling[k] for k in ("factor", "beta_fast", "beta_slow", "truncate")}
    model = GptOss(Config(**values, original_length=scaling["original_max_position_embeddings"]))
    tensors = load_file(str(path / "model.safetensors"))
    state = {}
    for name in model.state_dict():
        key = _file_name(name)
        if key + "_blocks" in tensors:
            state[name] = mxfp4.unpack(
                tensors[key + "_blocks"], tensors[key + "_scales"], swap_nibbles
            )
        else:
            state[name] = tensors[key].float()
    model.load_state_dict(state)
    for layer in model.layers:
        layer.mlp.quantize = False
    return model.eval()


# ---- ablations: the same weights read or computed the wrong way -------------------------------


def no_sinks(model):
    for layer in model.layers:
        layer.self_attn.sinks.data.fill_(float("-inf"))


def no_router_bias(model):
    for layer in model.layers:
        layer.mlp.router.bias.data.zero_()


def split_halves(model):
    """Gate and up rows taken as two halves where they alternate."""
    half = model.config.intermediate_size
    for layer in model.layers:
        for parameter in (layer.mlp.gate_up_proj, layer.mlp.gate_up_proj_bias):
            value = parameter.data.clone()
            parameter.data[:, 0::2], parameter.data[:, 1::2] = value[:, :half], value[:, half:]


def setting(**changes):
    def change(model):
        for key, value in changes.items():
            setattr(model.config, key, value)

    return change


ABLATIONS = {
    "intact": (None, False),
    "no sinks": (no_sinks, False),
    "window 128": (setting(sliding_window=128), False),
    "window 31": (setting(sliding_window=31), False),
    "no window": (setting(sliding_window=10**6), False),
    "swapped nibbles": (None, True),
    "no router bias": (no_router_bias, False),
    "gate and up as halves": (split_halves, False),
    "YaRN truncated": (setting(truncate=True), False),
    "no YaRN": (setting(factor=1.0), False),
    "no swiglu clamp": (setting(swiglu_limit=1e9), False),
}
