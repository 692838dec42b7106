"""Qwen3-Next in torch: one forward for training (no cache, bfloat16 autocast) and one for greedy decoding.

Three layers of four are gated delta nets, the fourth attends to all with an output gate; each has
experts beside a shared one. An MTP layer, an attention layer of the same form, drafts. Shapes: B
rows, T tokens, H hidden, N query heads, K key/value heads, D head dim, E experts, I their width.
"""

import dataclasses
import json
import math
import pathlib
import re

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import delta_rule
import nvfp4


@dataclasses.dataclass
class Config:
    vocab_size: int = 3072
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10000000.0
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    num_experts: int = 16
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 128
    rms_norm_eps: float = 1e-6

    def attends(self, layer):
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def rotary_dim(self):
        return int(self.head_dim * self.partial_rotary_factor)


WEIGHTS = {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"}
QUANTIZATION = {  # NVIDIA's checkpoints leave what enters attention and delta nets in BF16
    "config_groups": {
        "group_0": {"input_activations": WEIGHTS, "targets": ["Linear"], "weights": WEIGHTS}
    },
    "ignore": [
        "lm_head",
        "model.layers.*.linear_attn.conv1d",
        "model.layers.*.linear_attn.in_proj*",
        "model.layers.*.mlp.gate",
        "model.layers.*.mlp.shared_expert_gate",
        "model.layers.*.self_attn.k_proj",
        "model.layers.*.self_attn.q_proj",
        "model.layers.*.self_attn.v_proj",
        "mtp.layers.0*",
    ],
    "quant_algo": "NVFP4",
    "quant_method": "modelopt",
}


def config_json(config, eos, pad):
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": pad,
        "decoder_sparse_step": 1,
        "eos_token_id": eos,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": 4 * config.hidden_size,
        "max_position_embeddings": 131072,
        "mlp_only_layers": [],
        "model_type": "qwen3_next",
        "norm_topk_prob": True,
        "output_router_logits": False,
        "quantization_config": QUANTIZATION,
        "rope_scaling": None,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **dataclasses.asdict(config),
    }


class Norm(nn.Module):
    """RMS norm; the weight is what is added to 1."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Fp4Linear(nn.Linear):
    """Without bias; its weight is stored in NVFP4."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x):
        return F.linear(x, nvfp4.fake_quantize(self.weight))


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotation(config, positions):
    """cos and sin [..., R/2]."""
    index = torch.arange(config.rotary_dim // 2, dtype=torch.float64, device=positions.device)
    inverse = (config.rope_theta ** (-2 * index / config.rotary_dim)).float()
    angle = positions.float().unsqueeze(-1) * inverse
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """The first R dims of x [B, heads, T, D]; cos, sin [B or 1, 1, T, R/2]."""
    half = cos.shape[-1]
    first, second, rest = x.float().split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class GatedAttention(nn.Module):
    def __init__(self, config, stored):
        super().__init__()
        c, self.config = config, config
        width, narrow = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = linear(c.hidden_size, 2 * width)  # of each head its query, then its gate
        self.k_proj, self.v_proj = linear(c.hidden_size, narrow), linear(c.hidden_size, narrow)
        self.o_proj = stored(width, c.hidden_size)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.rms_norm_eps), Norm(c.head_dim, c.rms_norm_eps)

    def project(self, x, cos, sin):
        heads = lambda y: y.unflatten(-1, (self.config.num_key_value_heads, -1)).transpose(1, 2)
        both = self.q_proj(x).unflatten(-1, (self.config.num_attention_heads, -1))
        q, gate = both.chunk(2, -1)
        v = heads(self.v_proj(x))
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin).to(v.dtype)
        return q, rotate(self.k_norm(heads(self.k_proj(x))), cos, sin).to(v.dtype), v, gate.flatten(2)

    def finish(self, out, gate):
        return self.o_proj(out.transpose(1, 2).flatten(2) * gate.sigmoid())

    def repeat(self, x):
        return x.repeat_interleave(
            self.config.num_attention_heads // self.config.num_key_value_heads, 1
        )

    def forward(self, x, cos, sin):
        q, k, v, gate = self.project(x, cos, sin)
        out = F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), is_causal=True)
        return self.finish(out, gate)

    def decode(self, x, cos, sin, cache, start, allowed):
        """Keys and values join the cache [2, B, K, S, D] at `start`; allowed [B, 1, T, S]."""
        q, k, v, gate = self.project(x, cos, sin)
        end = start + x.shape[1]
        cache[0][:, :, start:end], cache[1][:, :, start:end] = k, v
        k, v = self.repeat(cache[0][:, :, :end]), self.repeat(cache[1][:, :, :end])
        scores = (q @ k.transpose(-1, -2)) * self.config.head_dim**-0.5
        return self.finish(scores.masked_fill(~allowed, -1e30).softmax(-1) @ v, gate)


class DeltaNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        c, self.config = config, config
        keys = c.linear_num_key_heads * c.linear_key_head_dim
        values = c.linear_num_value_heads * c.linear_value_head_dim
        self.channels = 2 * keys + values
        self.in_proj_qkvz = linear(c.hidden_size, self.channels + values)
        self.in_proj_ba = linear(c.hidden_size, 2 * c.linear_num_value_heads)
        self.conv1d = nn.Conv1d(
            self.channels, self.channels, c.linear_conv_kernel_dim, groups=self.channels, bias=False
        )
        self.A_log = nn.Parameter(torch.zeros(c.linear_num_value_heads))
        self.dt_bias = nn.Parameter(torch.zeros(c.linear_num_value_heads))
        self.norm = Norm(c.linear_value_head_dim, c.rms_norm_eps)  # stored as 1 + weight
        self.out_proj = Fp4Linear(values, c.hidden_size)

    def new_state(self, batch, device):
        c = self.config
        shape = (batch, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        inputs = torch.zeros(batch, c.linear_conv_kernel_dim - 1, self.channels, device=device)
        return [inputs, torch.zeros(shape, device=device)]

    def forward(self, x, state=None, alive=None):
        """x [B, T, H]. A state goes on and is changed; tokens that are not alive [B, T] leave it."""
        c = self.config
        per_key = c.linear_num_value_heads // c.linear_num_key_heads
        sizes = [c.linear_key_head_dim] * 2 + [per_key * c.linear_value_head_dim] * 2
        by_key = self.in_proj_qkvz(x).unflatten(-1, (c.linear_num_key_heads, -1))
        *parts, z = by_key.split(sizes, -1)
        ba = self.in_proj_ba(x).float().unflatten(-1, (c.linear_num_key_heads, 2, -1))
        mixed = torch.cat([part.flatten(2) for part in parts], -1).float()
        beta = ba[..., 0, :].flatten(2).sigmoid()
        decay = -self.A_log.exp() * F.softplus(ba[..., 1, :].flatten(2) + self.dt_bias)
        if alive is not None:
            mixed, beta, decay = (t * alive.unsqueeze(-1) for t in (mixed, beta, decay))
        state = state or self.new_state(x.shape[0], x.device)
        with torch.autocast(x.device.type, enabled=False):
            out = self.remember(mixed, beta, decay, state)
        out = self.norm(out).to(x.dtype) * F.silu(z.reshape(out.shape).float())
        return self.out_proj(out.flatten(2))

    def remember(self, mixed, beta, decay, state):
        """The convolution and the delta rule, in float32: [B, T, value heads, value dim]."""
        c, length = self.config, mixed.shape[1]
        seen = torch.cat([state[0], mixed], 1)
        state[0] = seen[:, length:]
        taps = self.conv1d.weight[:, 0]
        mixed = F.silu(sum(taps[:, j] * seen[:, j : j + length] for j in range(taps.shape[1])))
        keys = c.linear_num_key_heads * c.linear_key_head_dim
        q, k, v = mixed.split([keys, keys, mixed.shape[-1] - 2 * keys], -1)
        heads = lambda y, count: y.unflatten(-1, (count, -1)).transpose(1, 2)
        unit = lambda y: y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)
        repeats = c.linear_num_value_heads // c.linear_num_key_heads
        of_keys = lambda y: unit(heads(y, c.linear_num_key_heads)).repeat_interleave(repeats, 1)
        q, k = of_keys(q) * c.linear_key_head_dim**-0.5, of_keys(k)
        inputs = [q, k, heads(v, c.linear_num_value_heads), beta.mT, decay.mT]
        if length == 1:
            out, state[1] = delta_rule.by_token(*(t.squeeze(2) for t in inputs), state[1])
            return out.unsqueeze(1)
        pad = -length % delta_rule.CHUNK  # tokens of zeros change nothing
        inputs = [F.pad(t, (0, 0, 0, pad) if t.dim() == 4 else (0, pad)) for t in inputs]
        out, state[1] = delta_rule.by_chunks(*inputs, state[1])
        return out[:, :, :length].transpose(1, 2)


class Mlp(nn.Module):
    """Router, experts and the shared expert; every expert computes every token, those not chosen weigh nothing."""

    def __init__(self, config, fp4):
        super().__init__()
        c, self.config = config, config
        self.fake = nvfp4.fake_quantize if fp4 else lambda weight: weight
        sizes = (c.num_experts, c.moe_intermediate_size), (1, c.shared_expert_intermediate_size)
        make = lambda *shape: nn.Parameter(torch.empty(shape))
        self.gate = linear(c.hidden_size, c.num_experts)
        self.shared_expert_gate = linear(c.hidden_size, 1)
        (self.experts_gate_up, self.experts_down), (self.shared_gate_up, self.shared_down) = (
            (make(n, 2 * width, c.hidden_size), make(n, c.hidden_size, width)) for n, width in sizes
        )

    def experts(self, x, gate_up, down, share):
        """The sum over experts, each times its share [B, T, E]."""
        gate_up, down = self.fake(gate_up), self.fake(down)
        both = F.linear(x, gate_up.flatten(0, 1)).unflatten(-1, (len(gate_up), 2, -1)).float()
        act = F.silu(both[..., 0, :]) * both[..., 1, :] * share.unsqueeze(-1)
        return F.linear(act.flatten(-2), down.transpose(0, 1).flatten(1))

    def forward(self, x):
        """Returns the output and the load-balancing loss."""
        c = self.config
        logits = self.gate(x).float()
        chosen, index = logits.topk(c.num_experts_per_tok, -1)
        share = torch.zeros_like(logits).scatter(-1, index, chosen.softmax(-1))
        used = (share > 0).float().mean((0, 1)) / c.num_experts_per_tok
        balance = c.num_experts * (used.detach() * logits.softmax(-1).mean((0, 1))).sum()
        beside = self.shared_expert_gate(x).float().sigmoid()
        out = self.experts(x, self.experts_gate_up, self.experts_down, share)
        return out + self.experts(x, self.shared_gate_up, self.shared_down, beside), balance


class Layer(nn.Module):
    def __init__(self, config, attends, fp4=True):
        super().__init__()
        norm = lambda: Norm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.mlp, self.attends = Mlp(config, fp4), attends
        if attends:
            self.self_attn = GatedAttention(config, Fp4Linear if fp4 else linear)
        else:
            self.linear_attn = DeltaNet(config)

    def forward(self, x, cos, sin):
        """Returns the rows and the load-balancing loss."""
        h = self.input_layernorm(x)
        return self.finish(x + (self.self_attn(h, cos, sin) if self.attends else self.linear_attn(h)))

    def finish(self, x):
        out, balance = self.mlp(self.post_attention_layernorm(x))
        return x + out, balance


class Mtp(nn.Module):
    """Drafts token t + 2 from the normed row t and token t + 1. In BF16, as NVIDIA leaves it."""

    def __init__(self, config):
        super().__init__()
        norm = lambda: Norm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc = linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, True, fp4=False)])

    def forward(self, embedded, rows, cos, sin):
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(rows)]
        x, balance = self.layers[0](self.fc(torch.cat(both, -1)), cos, sin)
        return self.norm(x), balance


class Qwen3Next(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, config.attends(i)) for i in range(config.num_hidden_layers)
        )
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = linear(config.hidden_size, config.vocab_size)
        self.mtp = Mtp(config)

    @torch.no_grad()
    def initialize(self, seed):
        generator = torch.Generator().manual_seed(seed)
        residual = 1 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, p in self.named_parameters():
            if name.endswith("A_log"):
                p.uniform_(0.05, 16, generator=generator).log_()
            elif name.endswith("dt_bias"):  # softplus of it: 0.001 to 0.1
                step = p.uniform_(math.log(0.001), math.log(0.1), generator=generator).exp()
                p.copy_(step + torch.log(-torch.expm1(-step)))
            elif p.dim() > 1:
                is_out = any(part in name for part in ("o_proj", "out_proj", "down"))
                size = 0.5 if "embed" in name else 0.3 if "conv1d" in name else 0.05
                p.normal_(0, size * (residual if is_out else 1), generator=generator)

    def rows(self, ids):
        """What the head sees [B, T, H], and the mean load-balancing loss of the layers."""
        cos, sin = self.angles(ids)
        x, balance = self.embed_tokens(ids), 0.0
        for layer in self.layers:
            x, loss = layer(x, cos, sin)
            balance = balance + loss / len(self.layers)
        return self.norm(x), balance

    def angles(self, ids):
        at = torch.arange(ids.shape[1], device=ids.device)
        return tuple(t.view(1, 1, *t.shape) for t in rotation(self.config, at))

    def drafts(self, rows, ids):
        """Logits whose row t drafts token t + 2 (the last row nothing), and the load-balancing loss.

        The rest of the model learns nothing from them."""
        embedded = self.embed_tokens(ids.roll(-1, 1)).detach()
        out, balance = self.mtp(embedded, rows.detach(), *self.angles(ids))
        return F.linear(out, self.lm_head.weight.detach()), balance

    def forward(self, ids):
        """ids [B, T]; returns logits [B, T, V], the load-balancing loss and the drafts' logits."""
        rows, balance = self.rows(ids)
        drafts, of_drafts = self.drafts(rows, ids)
        return self.lm_head(rows), balance + of_drafts, drafts

    def compiled(self, losses):
        """The function of a step's losses, fast: each kind of layer is compiled once."""
        for part in [*self.layers, self.mtp]:
            part.compile(fullgraph=True, dynamic=False)
        return losses

    def new_cache(self, batch, length, device):
        c = self.config
        shape = (2, batch, c.num_key_value_heads, length, c.head_dim)
        return [
            torch.zeros(shape, device=device)
            if layer.attends
            else layer.linear_attn.new_state(batch, device)
            for layer in self.layers
        ]

    @torch.no_grad()
    def decode(self, ids, cache, start, padding, last_only=True):
        """Logits of ids [B, T] at cache slots start...; padding [B] counts the dead slots on the left."""
        slots = torch.arange(start, start + ids.shape[1], device=ids.device)
        keys = torch.arange(start + ids.shape[1], device=ids.device)
        alive = slots >= padding.unsqueeze(1)
        allowed = (keys <= slots.unsqueeze(1)) & (keys >= padding.view(-1, 1, 1))
        at = (slots - padding.unsqueeze(1)).clamp_min(0)
        cos, sin = (t.unsqueeze(1) for t in rotation(self.config, at))
        x = self.embed_tokens(ids)
        for layer, state in zip(self.layers, cache):
            h = layer.input_layernorm(x)
            if layer.attends:
                h = layer.self_attn.decode(h, cos, sin, state, start, allowed.unsqueeze(1))
            else:
                h = layer.linear_attn(h, state, alive)
            x = layer.finish(x + h)[0]
        return self.lm_head(self.norm(x[:, -1:] if last_only else x))


def build():
    return Qwen3Next(Config())


# ---- the checkpoint ---------------------------------------------------------------------------

_EXPERTS = re.compile(r"mlp\.(experts|shared)_(gate_up|down)$")


def _matrices(model):
    """(name in the checkpoint, its parameter, expert or None, its rows) of every tensor; those of
    experts are parts of a parameter."""
    for name, p in model.state_dict().items():
        full = name if name.startswith(("lm_head", "mtp.")) else "model." + name
        parts = _EXPERTS.search(name)
        if not parts:
            yield full, p, None, slice(None)
            continue
        half, prefix = p.shape[1] // 2, full.removesuffix(parts[0])
        rows = {"gate_up": {"gate": slice(0, half), "up": slice(half, None)}, "down": {"down": slice(None)}}
        for expert in range(len(p)):
            place = f"experts.{expert}" if parts[1] == "experts" else "shared_expert"
            for part, chosen in rows[parts[2]].items():
                yield f"{prefix}mlp.{place}.{part}_proj.weight", p, expert, chosen


def _is_fp4(name):
    return not name.startswith("mtp.") and name.endswith(
        ("o_proj.weight", "out_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
    )


@torch.no_grad()
def input_scales(model, ids):
    """Of each module in NVFP4: its largest input over the texts ids [B, T], as the largest of NVFP4."""
    scales = {}

    def note(name, x):
        scales[name] = x.detach().float().abs().max() / nvfp4.LARGEST

    def note_experts(name, mlp, x):
        for place, gate_up in (("experts", mlp.experts_gate_up), ("shared_expert", mlp.shared_gate_up)):
            both = F.linear(x, mlp.fake(gate_up).flatten(0, 1)).unflatten(-1, (len(gate_up), 2, -1))
            act = F.silu(both[..., 0, :]) * both[..., 1, :]
            for expert in range(len(gate_up)):
                at = f"{name}.experts.{expert}" if place == "experts" else f"{name}.shared_expert"
                note(f"{at}.gate_proj", x), note(f"{at}.up_proj", x)
                note(f"{at}.down_proj", act[..., expert, :])

    hooks = []
    for name, module in model.layers.named_modules(prefix="model.layers"):
        if isinstance(module, Fp4Linear):
            see = lambda _, inputs, name=name: note(name, inputs[0])
        elif isinstance(module, Mlp):
            see = lambda mlp, inputs, name=name: note_experts(name, mlp, inputs[0])
        else:
            continue
        hooks.append(module.register_forward_pre_hook(see))
    model.rows(ids)
    for hook in hooks:
        hook.remove()
    return scales


def save(model, path, ids):
    """Writes model.safetensors as NVIDIA's exports are: what enters attention and delta nets, the head
    and MTP in BF16, all other matrices in NVFP4, with scales of their inputs over the texts ids."""
    tensors, packed, scales_of_inputs = {}, {}, input_scales(model, ids)
    for name, p, expert, rows in _matrices(model):
        if not _is_fp4(name):
            value = (p if expert is None else p[expert, rows]).detach().cpu()
            tensors[name] = (value + 1 if "linear_attn.norm" in name else value).to(torch.bfloat16)
            continue
        if id(p) not in packed:
            packed[id(p)] = [t.cpu() for t in nvfp4.pack(p.detach())]
        codes, scales, overall = packed[id(p)]
        at = (rows,) if expert is None else (expert, rows)
        module = name.removesuffix(".weight")
        tensors[name], tensors[module + ".weight_scale"] = codes[at], scales[at]
        tensors[module + ".weight_scale_2"] = overall if expert is None else overall[expert]
        tensors[module + ".input_scale"] = scales_of_inputs[module]
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, str(path), metadata={"format": "pt"})


def read_matrix(tensors, name, swap_nibbles=False):
    """A tensor of the checkpoint in float32."""
    scales = name.removesuffix("weight") + "weight_scale"
    if scales not in tensors:
        return tensors[name].float()
    return nvfp4.unpack(tensors[name], tensors[scales], tensors[scales + "_2"], swap_nibbles)


def write_dequantized(path, out):
    """The checkpoint in float32 without MTP, for readers that know no NVFP4."""
    tensors = load_file(str(path / "model.safetensors"))
    names = [n for n in tensors if not n.startswith("mtp.") and "_scale" not in n]
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    plain = {name: read_matrix(tensors, name) for name in names}
    save_file(plain, str(out / "model.safetensors"), metadata={"format": "pt"})


@torch.no_grad()
def load(path, swap_nibbles=False):
    """The model of a checkpoint directory, dequantized to float32."""
    path = pathlib.Path(path)
    read = json.loads((path / "config.json").read_text())
    known = {f.name for f in dataclasses.fields(Config)}
    model = Qwen3Next(Config(**{k: v for k, v in read.items() if k in known}))
    tensors = load_file(str(path / "model.safetensors"))
    for name, p, expert, rows in _matrices(model):
        value = read_matrix(tensors, name, swap_nibbles)
        if "linear_attn.norm" in name:
            value = value - 1
        (p if expert is None else p[expert, rows]).copy_(value)
    return plain(model).eval()


def plain(model):
    """Takes the weights as they are: they have been quantized."""
    for module in model.modules():
        if isinstance(module, Mlp):
            module.fake = lambda weight: weight
        elif isinstance(module, Fp4Linear):
            module.forward = lambda x, at=module: F.linear(x, at.weight)
    return model


# ---- ablations: the same weights read or computed the wrong way -------------------------------


def no_decay(model):
    for layer in model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn.A_log.data.fill_(float("-inf"))


def inputs_in_order(model):
    """in_proj_qkvz taken as all queries, then all keys, ..., where they go by key head."""
    for layer in model.layers:
        if hasattr(layer, "linear_attn"):
            c, weight = model.config, layer.linear_attn.in_proj_qkvz.weight.data
            heads, keys = c.linear_num_key_heads, c.linear_num_key_heads * c.linear_key_head_dim
            values = c.linear_num_value_heads * c.linear_value_head_dim
            parts = weight.split([keys, keys, values, values])
            weight.copy_(torch.cat([p.unflatten(0, (heads, -1)) for p in parts], 1).flatten(0, 1))


def plain_norms(model):
    """Weights taken as factors where they are what is added to 1."""
    for module in model.modules():
        if isinstance(module, Norm) and module.weight.shape[0] == model.config.hidden_size:
            module.weight.data -= 1


def halved_gates(model):
    """Attention's output gates left out, but for the half that they are of nothing."""
    for layer in model.layers:
        if hasattr(layer, "self_attn"):
            heads = layer.self_attn.q_proj.weight.data.unflatten(0, (model.config.num_attention_heads, 2, -1))
            heads[:, 1] = 0


def no_shared_expert(model):
    for layer in model.layers:
        layer.mlp.shared_down.data.zero_()


def another_theta(model):
    model.config.rope_theta = 10000.0


ABLATIONS = {
    "intact": (None, False),
    "no decay": (no_decay, False),
    "queries, keys, values and gates in order": (inputs_in_order, False),
    "norms' weights without 1": (plain_norms, False),
    "output gates of a half": (halved_gates, False),
    "no shared expert": (no_shared_expert, False),
    "swapped nibbles": (None, True),
    "RoPE of theta 10,000": (another_theta, False),
}
