"""MXFP4: blocks of 32 values along the last dimension, 4-bit codes and one power-of-two scale.

A scale byte s stands for 2^(s-127).
"""

import torch

import e2m1


def _scaled(weight):
    """Blocks divided by their scale, and the exponents: the least for which no value passes 6."""
    blocks = weight.unflatten(-1, (-1, 32)).float()
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    exponent = torch.ceil(torch.log2(largest / 6.0))
    return blocks * torch.exp2(-exponent), exponent


def fake_quantize(weight):
    """What MXFP4 keeps of the weight; the gradient passes as if nothing had happened."""
    scaled, exponent = _scaled(weight.detach())
    kept = (e2m1.nearest(scaled) * torch.exp2(exponent)).flatten(-2)
    return weight + (kept - weight.detach())


def pack(weight):
    """[..., K] to blocks [..., K/32, 16] and scales [..., K/32], both uint8."""
    scaled, exponent = _scaled(weight)
    return e2m1.pack(e2m1.nearest(scaled)), (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(blocks, scales, swap_nibbles=False):
    """The inverse: float32 [..., K]. swap_nibbles reads the pairs the wrong way round."""
    values = e2m1.unpack(blocks, swap_nibbles)
    return (values * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)
