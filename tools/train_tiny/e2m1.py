"""E2M1, the 4-bit values of MXFP4 and NVFP4: bit 3 of a code is the sign, bits 0-2 index VALUES.

Two codes are a byte, the element before in the low nibble.
"""

import torch

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def nearest(scaled):
    """The nearest representable value, ties to the even code."""
    size = scaled.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(size / step) * step).clamp_max(6.0) * torch.sign(scaled)


def pack(values):
    """Values of E2M1 [..., K] to bytes [..., K/2]."""
    codes = torch.searchsorted(VALUES.to(values.device), values.abs().contiguous()).to(torch.uint8)
    codes |= (values < 0).to(torch.uint8) << 3
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed, swap_nibbles=False):
    """The inverse: float32. swap_nibbles reads the pairs the wrong way round."""
    table = torch.cat([VALUES, -VALUES]).to(packed.device)
    low, high = table[(packed & 15).long()], table[(packed >> 4).long()]
    return torch.stack((high, low) if swap_nibbles else (low, high), -1).flatten(-2)
