#!/usr/bin/env python3
"""What E4M3 activations cost a product, by how many columns share a scale.

Random MXFP4 rows of 2,880 columns times random activations, once normal and once with a few columns
that are 10 or 100 times larger (as trained models have them): the root mean square error of the
results over that of the results, with one scale a token (what --activations fp8 does), with one for
every group of 96 columns, and in bf16. Needs numpy.
"""

import numpy as np

COLS, ROWS, TOKENS = 2880, 1024, 512
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e4m3(x):
    """Rounds to E4M3: 3 bits of mantissa, steps of 2^-9 below 2^-6, at most 448."""
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    return np.clip(np.round(x / step) * step, -448, 448)


def by_scales(x, group):
    """x as E4M3, every `group` columns with the scale that makes their largest 448."""
    parts = x.reshape(len(x), -1, group)
    scale = np.abs(parts).max(axis=2, keepdims=True) / 448
    scale[scale == 0] = 1
    return (e4m3(parts / scale) * scale).reshape(x.shape)


def bf16(x):
    step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(x), 2.0**-126))) - 7)
    return np.round(x / step) * step


def main():
    random = np.random.default_rng(1)
    blocks = 2.0 ** random.integers(-9, -5, (ROWS, COLS // 32, 1))
    signs = random.choice([-1, 1], (ROWS, COLS // 32, 32))
    weights = (MAGNITUDES[random.integers(0, 8, (ROWS, COLS // 32, 32))] * signs * blocks).reshape(
        ROWS, COLS
    )
    print("activations                  one scale  groups of 96     bf16")
    for name, outliers, by in (
        ("normal", 0, 1),
        ("4 columns 10 times larger", 4, 10),
        ("4 columns 100 times larger", 4, 100),
        ("30 columns 100 times larger", 30, 100),
    ):
        x = random.standard_normal((TOKENS, COLS))
        x[:, random.choice(COLS, outliers, replace=False)] *= by
        exact = x @ weights.T
        size = np.sqrt((exact**2).mean())
        errors = [
            np.sqrt((((y @ weights.T) - exact) ** 2).mean()) / size
            for y in (by_scales(x, COLS), by_scales(x, 96), bf16(x))
        ]
        print(f"{name:28} {errors[0]:.1e}       {errors[1]:.1e}  {errors[2]:.1e}")


if __name__ == "__main__":
    main()
