#!/usr/bin/env python3
"""Writes tests/data/format_vectors.txt: bytes of each weight format and the float32 values they mean.

The formulas are those of the OCP specifications and of compressed-tensors' decompressors, in exact
rationals with one rounding to float32 where the format's header says so. Plain Python: no code of the
project, no library. A line: format, codes, scales, row scale, values (float32 bits), all in hex.
"""

import random
import struct
from fractions import Fraction

E2M1 = [Fraction(v) for v in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]


def f32(x):
    """The nearest float32 (ties to even) as a rational: doubles hold products of two float32 exactly."""
    return Fraction(struct.unpack("<f", struct.pack("<f", float(x)))[0])


def e2m1(code):
    return E2M1[code & 7] * (-1 if code & 8 else 1)


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    assert code & 0x7F != 0x7F
    if exponent == 0:
        value = Fraction(mantissa, 8) * Fraction(2) ** -6
    else:
        value = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    return value * (-1 if code & 0x80 else 1)


def f16(bits):
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    if exponent == 0:
        value = Fraction(mantissa, 1024) * Fraction(2) ** -14
    else:
        value = (1 + Fraction(mantissa, 1024)) * Fraction(2) ** (exponent - 15)
    return value * (-1 if bits & 0x8000 else 1)


def line(name, codes, scales, row_scale, values):
    bits = b"".join(struct.pack("<f", float(v)) for v in values)
    return " ".join([name, codes.hex(), scales.hex() or "-", struct.pack("<f", row_scale).hex(), bits.hex()])


def nibbles(codes):
    return [code for byte in codes for code in (byte & 15, byte >> 4)]


def main():
    rng = random.Random(16)
    a_float = lambda low, high: float(f32(2.0 ** rng.uniform(low, high)))
    fp8 = [c for c in range(256) if c & 0x7F != 0x7F]
    lines = []
    for scale in range(0x7F):  # every block scale there is
        codes, g = rng.randbytes(8), a_float(-20, -4)
        step = f32(e4m3(scale) * Fraction(g))
        lines.append(line("nvfp4", codes, bytes([scale]), g, [f32(e2m1(c) * step) for c in nibbles(codes)]))
    for start in range(0, 254, 32):  # every code there is
        codes, scale = bytes(fp8[(start + i) % 254] for i in range(32)), a_float(-16, 2)
        values = [f32(e4m3(c) * Fraction(scale)) for c in codes]
        lines.append(line("fp8", codes, b"", scale, values))
    for _ in range(4):  # two whole blocks and a partial one
        codes = bytes(rng.choice(fp8) for _ in range(300))
        scales = [a_float(-16, 2) for _ in range(3)]
        values = [f32(e4m3(c) * Fraction(scales[k // 128])) for k, c in enumerate(codes)]
        lines.append(line("fp8_block", codes, struct.pack("<3f", *scales), 1, values))
    for name, group in (("int4_g32", 32), ("int4_g128", 128)):
        for is_f16 in (0, 1):
            codes, groups, values = rng.randbytes(128), b"", []
            for start in range(0, 256, group):
                bits, zero = rng.randrange(0x2000, 0x3C00) if is_f16 else rng.randrange(0x3800, 0x3F80), rng.randrange(16)
                scale = f16(bits) if is_f16 else Fraction(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
                groups += struct.pack("<HBB", bits, zero, is_f16)
                values += [(c - zero) * scale for c in nibbles(codes)[start : start + group]]
            lines.append(line(name, codes, groups, 1, values))
    for _ in range(8):
        codes, scale = bytes(rng.choice(fp8) for _ in range(32)), rng.randrange(90, 150)
        values = [e4m3(c) * Fraction(2) ** (scale - 127) for c in codes]
        lines.append(line("mxfp8", codes, bytes([scale]), 1, values))
        codes = rng.randbytes(16)
        values = [e2m1(c) * Fraction(2) ** (scale - 127) for c in nibbles(codes)]
        lines.append(line("mxfp4", codes, bytes([scale]), 1, values))
        halves = [b for b in (rng.randrange(65536) for _ in range(40)) if b >> 10 & 31 != 31][:32]
        lines.append(line("f16", struct.pack("<32H", *halves), b"", 1, [f16(b) for b in halves]))
    with open("tests/data/format_vectors.txt", "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
