#!/usr/bin/env python3
"""Draws docs/images/gpu-<device>.svg from results of `make bench-gpu`: for each row the share of its
floor that nibble reaches, and the best peer's share on the same machine and shape.

usage: bench/plot_gpu.py RESULT.json... [--out docs/images/gpu-h200.svg]

A row's floor is the tokens/s at which the bytes it must read would pass at the read bandwidth
measured in the same run; prompts, which arithmetic bounds, are left out. Later files win where two
have the same row.
"""
import argparse
import html
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# tokens/s of vLLM 0.24 (the better of its Triton and Marlin MoE kernels), BF16 dense layers and KV,
# one H200, gpt-oss-120b's shape with random weights, 2026-11-20.
PEER = {"tg 1 @512": 238, "tg 1 @8192": 233, "tg 8": 996, "tg 16": 1230, "tg 32": 2100,
        "tg 64": 2950, "tg 128": 4620, "tg 256": 10490}
ROW, LEFT, WIDTH = 26, 170, 640
OURS, THEIRS, INK, GRID = "#2563eb", "#9ca3af", "#1f2937", "#e5e7eb"


def text(x, y, words, anchor="start", size=12, color=INK):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{color}">{html.escape(words)}</text>')


def bar(x, y, width, height, color):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{color}"/>'


def label(row):
    dense = "" if row["dense"] == "mxfp4" or row["test"].endswith("dense") else " bf16-dense"
    return row["test"] + dense


def draw(device, rows):
    height = 64 + ROW * len(rows) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 130} {height}" '
           'font-family="system-ui, sans-serif">',
           '<rect width="100%" height="100%" fill="white"/>',
           text(10, 22, f"gpt-oss-120b's shape on one {device}: share of the memory's floor", size=15),
           bar(10, 34, 10, 10, OURS), text(25, 43, "nibble"),
           bar(90, 34, 10, 10, THEIRS), text(105, 43, "vLLM 0.24, BF16 dense layers")]
    top = 58
    for percent in range(0, 101, 25):
        x = LEFT + WIDTH * percent / 100
        out.append(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{top + ROW * len(rows)}" stroke="{GRID}"/>')
        out.append(text(x, top + ROW * len(rows) + 16, f"{percent}%", "middle"))
    for i, (name, row) in enumerate(rows.items()):
        y = top + ROW * i + 4
        share, peer = row["value"] / row["floor"], PEER.get(row["test"].split(" bf16")[0])
        out.append(text(LEFT - 8, y + 14, name, "end"))
        out.append(bar(LEFT, y, WIDTH * min(share, 1), 11, OURS))
        longest = max(share, peer / row["floor"] if peer else 0)
        if peer:
            out.append(bar(LEFT, y + 11, WIDTH * min(peer / row["floor"], 1), 7, THEIRS))
        out.append(text(LEFT + WIDTH * min(longest, 1) + 6, y + 13,
                        f"{row['value']:,.0f} tokens/s" + (f" ({row['value'] / peer:.1f}x)" if peer else "")))
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/images/gpu-h200.svg")
    args = parser.parse_args()
    rows, device = {}, ""
    for path in args.results:
        result = json.loads(path.read_text())
        device = result["device"].removeprefix("NVIDIA ")
        rows |= {label(row): row for row in result["rows"] if row["test"].startswith("tg")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(draw(device, rows))
    print(args.out)


if __name__ == "__main__":
    main()
