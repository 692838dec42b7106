"""NVFP4: blocks of 16 values along the last dimension, each with a scale in E4M3; one float more
multiplies a whole matrix. Scales by the largest values, as ModelOpt's default has them.
"""

import torch

import e2m1

LARGEST = 6.0 * 448.0  # of E2M1 times the largest of E4M3


def _scaled(weight):
    """Blocks divided by their scales, the scales [..., K/16, 1] in E4M3, and the matrix's [..., 1, 1]."""
    weight = weight.float()
    overall = weight.abs().amax((-2, -1), keepdim=True).clamp_min(2.0**-100) / LARGEST
    blocks = weight.unflatten(-1, (-1, 16))
    scales = blocks.abs().amax(-1, keepdim=True) / (6.0 * overall.unsqueeze(-1))
    scales = scales.clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn)
    return blocks / (scales.float() * overall.unsqueeze(-1)), scales, overall


def fake_quantize(weight):
    """What NVFP4 keeps of the weight; the gradient passes as if nothing had happened."""
    scaled, scales, overall = _scaled(weight.detach())
    kept = (e2m1.nearest(scaled) * (scales.float() * overall.unsqueeze(-1))).flatten(-2)
    return weight + (kept - weight.detach())


def pack(weight):
    """[..., N, K] to codes [..., N, K/2] uint8, scales [..., N, K/16] E4M3 and [...] float32."""
    scaled, scales, overall = _scaled(weight)
    return e2m1.pack(e2m1.nearest(scaled).flatten(-2)), scales.squeeze(-1), overall[..., 0, 0]


def unpack(codes, scales, overall, swap_nibbles=False):
    """The inverse of one matrix: float32 [N, K]."""
    values = e2m1.unpack(codes, swap_nibbles).unflatten(-1, (-1, 16))
    return (values * (scales.float() * overall).unsqueeze(-1)).flatten(-2)
