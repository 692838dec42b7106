"""MXFP4: blocks of 32 values along the last dimension, 4-bit codes and one power-of-two scale.

Byte b of a block holds element 2b in its low and 2b+1 in its high nibble. A code's bit 3 is the
sign, bits 0-2 index {0, .5, 1, 1.5, 2, 3, 4, 6}; a scale byte s stands for 2^(s-127).
"""

import torch

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _scaled(weight):
    """Blocks divided by their scale, and the exponents: the least for which no value passes 6."""
    blocks = weight.unflatten(-1, (-1, 32)).float()
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    exponent = torch.ceil(torch.log2(largest / 6.0))
    return blocks * torch.exp2(-exponent), exponent


def _nearest(scaled):
    """The nearest representable value, ties to the even code."""
    size = scaled.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(size / step) * step).clamp_max(6.0) * torch.sign(scaled)


def fake_quantize(weight):
    """What MXFP4 keeps of the weight; the gradient passes as if nothing had happened."""
    scaled, exponent = _scaled(weight.detach())
    kept = (_nearest(scaled) * torch.exp2(exponent)).flatten(-2)
    return weight + (kept - weight.detach())


def pack(weight):
    """[..., K] to blocks [..., K/32, 16] and scales [..., K/32], both uint8."""
    scaled, exponent = _scaled(weight)
    nearest = _nearest(scaled)
    codes = torch.searchsorted(VALUES.to(weight.device), nearest.abs().contiguous()).to(torch.uint8)
    codes |= (nearest < 0).to(torch.uint8) << 3
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(blocks, scales, swap_nibbles=False):
    """The inverse: float32 [..., K]. swap_nibbles reads the pairs the wrong way round."""
    table = torch.cat([VALUES, -VALUES]).to(blocks.device)
    low, high = table[(blocks & 15).long()], table[(blocks >> 4).long()]
    pair = (high, low) if swap_nibbles else (low, high)
    values = torch.stack(pair, -1).flatten(-2)
    return (values * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)
