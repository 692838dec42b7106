"""An Eagle3 head in torch, as it is trained: a chain of drafts from every position at once.

Row t has seen the target's hidden rows up to position t. Its draft j is made from the token at
t + 1 + j and, for j = 0, from the target's rows, else from the head's own output before; it
foretells the token at t + 2 + j. Shapes: B rows, T positions, H hidden, N query heads, D head dim.
"""

import dataclasses
import json

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


@dataclasses.dataclass
class Config:
    hidden_size: int = 256
    intermediate_size: int = 512
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 64
    vocab_size: int = 3072
    draft_vocab_size: int = 1024
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    layer_ids: tuple = (0, 2, 4)  # the outputs of these layers, the first being 0


class RmsNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.hidden_size)), config.rms_norm_eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, positions, theta):
    """x [B, N, T, D]; positions [T]."""
    half = x.shape[-1] // 2
    inverse = theta ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (positions.double().unsqueeze(-1) * inverse).float()
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Eagle3(nn.Module):
    def __init__(self, config):
        super().__init__()
        c, self.config = config, config
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        width, narrow = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.fc = linear(3 * c.hidden_size, c.hidden_size)
        self.input_layernorm, self.hidden_norm = RmsNorm(c), RmsNorm(c)
        self.q_proj, self.k_proj = linear(2 * c.hidden_size, width), linear(2 * c.hidden_size, narrow)
        self.v_proj, self.o_proj = linear(2 * c.hidden_size, narrow), linear(width, c.hidden_size)
        self.post_attention_layernorm, self.norm = RmsNorm(c), RmsNorm(c)
        self.gate_proj = linear(c.hidden_size, c.intermediate_size)
        self.up_proj = linear(c.hidden_size, c.intermediate_size)
        self.down_proj = linear(c.intermediate_size, c.hidden_size)
        self.lm_head = linear(c.hidden_size, c.draft_vocab_size)

    def forward(self, embedded, rows, drafts):
        """embedded [B, T + drafts - 1, H] of the tokens from position 1 on; rows [B, T, 3 H].
        The logits [B, T, draft vocabulary] of each draft."""
        c, count = self.config, rows.shape[1]
        heads = lambda x: x.unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        repeat = lambda x: x.repeat_interleave(c.num_attention_heads // c.num_key_value_heads, 1)
        at = torch.arange(count, device=rows.device)
        future = at.unsqueeze(0) > at.unsqueeze(1)
        hidden, keys, values, logits = self.fc(rows), [], [], []
        for j in range(drafts):
            x = torch.cat(
                [self.input_layernorm(embedded[:, j : j + count]), self.hidden_norm(hidden)], -1
            )
            q = rotate(heads(self.q_proj(x)), at + j, c.rope_theta)
            keys.append(repeat(rotate(heads(self.k_proj(x)), at + j, c.rope_theta)))
            values.append(repeat(heads(self.v_proj(x))))
            # All that the target has seen, then the chain's own tokens.
            scores = (q @ keys[0].transpose(-1, -2)).masked_fill(future, -torch.inf)
            own = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
            weights = (torch.cat([scores] + own, -1) * c.head_dim**-0.5).softmax(-1)
            out = weights[..., :count] @ values[0]
            for i, v in enumerate(values[1:]):
                out = out + weights[..., count + i : count + i + 1] * v
            hidden = hidden + self.o_proj(out.transpose(1, 2).flatten(2))
            h = self.post_attention_layernorm(hidden)
            hidden = hidden + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits


def tensor_name(name):
    """Our parameter's name as SpecForge spells it."""
    if name.startswith(("fc.", "norm.", "lm_head.")):
        return name
    is_attention = name.startswith(("q_proj", "k_proj", "v_proj", "o_proj"))
    part = "self_attn." if is_attention else "mlp." if "_proj" in name else ""
    return "midlayer." + part + name


def save(head, target_ids, directory):
    """As SpecForge writes one: target_ids are the ids of the draft vocabulary, ascending."""
    c = head.config
    tensors = {tensor_name(n): p.detach().bfloat16().cpu() for n, p in head.named_parameters()}
    tensors["d2t"] = target_ids - torch.arange(len(target_ids))
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(directory / "model.safetensors"))
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "draft_vocab_size": c.draft_vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(c.layer_ids)},
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": 131072,
        "model_type": "llama",
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": c.num_key_value_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": c.vocab_size,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
