#!/usr/bin/env python3
"""Tables of docs/gpu.md from results of `make bench-gpu`, as Markdown on standard output: the rows
with their peer and the goal set for them, which are also written into the files, what a step is made
of (from files with profiles), and each chosen kernel alone (from bench ops).
"""
import argparse
import json
import pathlib

from plot_gpu import PEER

PEER_NAME = "vLLM 0.24, bf16 dense, one H200"
PROMPTS = {"pp512": 14900, "pp2048": 29600, "pp8192": 45600}  # the same peer
PEERS = {**PEER, **PROMPTS}
# tokens/s asked for; rows in bf16 throughout are to be ahead of the peer.
GOALS = {"tg 1 @512": 800, "tg 1 @8192": 720, "tg 8": 1500, "tg 16": 1800, "tg 32": 2500,
         "tg 64": 3700, "tg 128": 6600, "tg 256": 12500}
FP8_GOALS = {"tg 128": 6600, "tg 256": 12500, "pp512": 20000, "pp2048": 42000, "pp8192": 60000}
BF16_GOALS = {"tg 1 @512": 520, "tg 8": 996, "tg 64": 2950, "pp2048": 29600, "pp8192": 45600}


def goal_of(row):
    if row["dense"] == "bf16":
        return BF16_GOALS.get(row["test"])
    if row["activations"] == "fp8":
        return FP8_GOALS.get(row["test"])
    return {**GOALS, "pp8192": 48000}.get(row["test"])


def number(value):
    return "" if value is None else f"{value:,.0f}"


def print_rows(rows):
    print("| test | dense | activations | tokens/s | goal | peer | floor | of floor |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        reached = row["goal"] is not None and row["value"] >= row["goal"]
        value = f"**{number(row['value'])}**" if reached else number(row["value"])
        print(f"| {row['test']} | {row['dense']} | {row['activations']} | {value} | {number(row['goal'])} | "
              f"{number(row['peer_value'])} | {number(row['floor'])} | {100 * row['ratio']:.0f}% |")


def print_profile(row):
    profile = row["profile"]
    print(f"\n{row['test']}, {row['activations']} activations: {profile['step_us']:,.0f} us a step\n\n"
          "| op | launches | us alone | of floor | us saved |\n|---|---|---|---|---|")
    for op in sorted(profile["ops"], key=lambda op: -op["us_saved_without"]):
        share = op["percent_of_floor"]
        print(f"| {op['op']} | {op['launches']} | {op['us']:,.0f} | {'' if share is None else f'{share:.0f}%'} | "
              f"{op['us_saved_without']:,.0f} |")


def print_ops(rows):
    """The fastest kernel of each op, by the tokens of a step."""
    tokens = [1, 8, 64, 256, 512, 8192]
    cells = {}
    for row in rows:
        fp8 = "fp8" in row["kernel"] or "w4a8" in row["kernel"]
        cell = cells.setdefault((row["op"], row["weights"] + (", fp8" if fp8 else "")), {})
        best = cell.setdefault(row["tokens"], row)
        if row["seconds"] < best["seconds"]:
            cell[row["tokens"]] = row
    print("\n| op | weights | " + " | ".join(f"{t:,}" for t in tokens) + " |\n|" + "---|" * (2 + len(tokens)))
    for (op, weights), cell in cells.items():
        times = []
        for t in tokens:
            us = 1e6 * cell[t]["seconds"] if t in cell else 0
            digits = 1 if us < 10 else 0
            times.append(f"{us:,.{digits}f} ({cell[t]['percent_of_floor']:.0f}%)" if t in cell else "")
        print(f"| {op} | {weights} | " + " | ".join(times) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=pathlib.Path, help="RESULT.json")
    files = parser.parse_args().results
    results = {file: json.loads(file.read_text()) for file in files}
    table, profiles, ops = [], [], []
    for file, result in results.items():
        for row in result.get("rows", []):
            if "op" in row:
                ops.append(row)
                continue
            peer = PEERS.get(row["test"])
            row.update(peer=PEER_NAME if peer else None, peer_value=peer, goal=goal_of(row))
            (profiles if "profile" in row else table).append(row)
        file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if table:
        print_rows(table)
    for row in profiles:
        print_profile(row)
    if ops:
        print_ops(ops)


if __name__ == "__main__":
    main()
