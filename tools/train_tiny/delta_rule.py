"""The gated delta rule in torch: by chunks for whole texts, with gradients, and token by token.

B rows, H heads, T tokens; a head's state S is [dk, dv]. A token decays it by exp(g), then adds
k d' with d = beta (v - S'k), and reads S'q. Within a chunk of 64 tokens that is a triangular
system, from chunk to chunk an affine map of the state (Yang et al., Gated Delta Networks, 2024).
"""

import torch

CHUNK = 64
_BLOCK = 16  # inverted by a product of powers, which grow too large in larger blocks


def _inverse(m):
    """(I + m)^-1 of strictly lower triangular m [..., 64, 64]."""
    parts = m.unflatten(-2, (-1, _BLOCK)).unflatten(-1, (-1, _BLOCK))
    power = -parts.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    unit = torch.eye(_BLOCK, dtype=m.dtype, device=m.device)
    inverse = unit + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    size = _BLOCK
    while size < m.shape[-1]:  # [[a, 0], [c, b]] of the inverses a, b of two blocks beside another
        a, b = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        parts = m.unflatten(-2, (-1, 2, size)).unflatten(-1, (-1, 2, size))
        below = parts[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        corner = -(b @ (below @ a))
        upper = torch.cat([a, torch.zeros_like(a)], -1)
        inverse = torch.cat([upper, torch.cat([corner, b], -1)], -2)
        size *= 2
    return inverse.squeeze(-3)


class UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m):
        inverse = _inverse(m)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


@torch.library.custom_op("train_tiny::states", mutates_args=())
def states(maps: torch.Tensor, added: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """s[0] = first; s[c + 1] = maps[c] s[c] + added[c]. maps [C, N, dk, dk], added [C, N, dk, dv];
    returns [C + 1, N, dk, dv]. One product a chunk is all that has to wait for the one before."""
    out = torch.empty((maps.shape[0] + 1, *first.shape), dtype=first.dtype, device=first.device)
    out[0] = first
    for c in range(maps.shape[0]):
        torch.baddbmm(added[c], maps[c], out[c], out=out[c + 1])
    return out


@states.register_fake
def _(maps, added, first):
    return first.new_empty((maps.shape[0] + 1, *first.shape))


@torch.library.custom_op("train_tiny::states_backward", mutates_args=())
def states_backward(maps: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The whole gradient of each state: its own and, through the maps, those of the later ones."""
    out = grad.clone(memory_format=torch.contiguous_format)
    for c in range(maps.shape[0] - 1, -1, -1):
        out[c].baddbmm_(maps[c].transpose(-1, -2), out[c + 1])
    return out


@states_backward.register_fake
def _(maps, grad):
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _states_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


def _states_gradient(ctx, grad):
    maps, out = ctx.saved_tensors
    whole = states_backward(maps, grad)
    return whole[1:] @ out[:-1].transpose(-1, -2), whole[1:], whole[0]


states.register_autograd(_states_gradient, setup_context=_states_setup)


def by_chunks(q, k, v, beta, g, state):
    """q, k [B, H, T, dk], v [B, H, T, dv], beta, g [B, H, T], state [B, H, dk, dv], all float32; T a
    multiple of 64. Returns the outputs [B, H, T, dv] and the state behind them."""
    chunks = lambda x: x.contiguous().unflatten(2, (-1, CHUNK))
    q, k, v, beta, total = chunks(q), chunks(k), chunks(v), chunks(beta), chunks(g).cumsum(-1)
    at = torch.arange(CHUNK, device=q.device)
    seen = at.unsqueeze(1) >= at
    gap = total.unsqueeze(-1) - total.unsqueeze(-2)
    decay = gap.masked_fill(~seen, -torch.inf).exp()  # [B, H, C, 64, 64], 0 above the diagonal
    kt = k.transpose(-1, -2)
    inverse = UnitLowerInverse.apply((beta.unsqueeze(-1) * (k @ kt) * decay).tril(-1))
    u = inverse @ (v * beta.unsqueeze(-1))
    w = inverse @ (k * (beta * total.exp()).unsqueeze(-1))
    last = total[..., -1:]
    kept = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    unit = torch.eye(k.shape[-1], device=q.device)
    maps = last.exp().unsqueeze(-1) * unit - kept @ w
    first = lambda x: x.movedim(2, 0).flatten(1, 2).contiguous()  # [C, B H, ...]
    s = states(first(maps), first(kept @ u), state.flatten(0, 1).contiguous())
    before = s[:-1].unflatten(1, q.shape[:2]).movedim(0, 2)
    out = (q * total.exp().unsqueeze(-1)) @ before + ((q @ kt) * decay) @ (u - w @ before)
    return out.flatten(2, 3), s[-1].unflatten(0, q.shape[:2])


def by_token(q, k, v, beta, g, state):
    """The same of one token: q, k [B, H, dk], v [B, H, dv], beta, g [B, H]."""
    state = state * g.exp()[..., None, None]
    delta = beta.unsqueeze(-1) * (v - (k.unsqueeze(-2) @ state).squeeze(-2))
    state = state + k.unsqueeze(-1) * delta.unsqueeze(-2)
    return (q.unsqueeze(-2) @ state).squeeze(-2), state
