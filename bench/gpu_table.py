#!/usr/bin/env python3
"""Tables of docs/gpu.md from results of `make bench-gpu`, as Markdown on standard output: the rows
with their peer and the goal set for them, which are also written into the files, what a step is made
of (from files with profiles), and each chosen kernel alone (from bench ops). Of other models than
gpt-oss one row each.
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

# Of other models: the peer, and what was asked for.
TESTS = ("tg 1 @512", "tg 8", "tg 64", "tg 256", "pp512", "pp2048", "pp8192")
FAMILIES = {
    "nvidia/Qwen3-8B-NVFP4": ((262, 1985, 8267, 12456, 17555, 20853, 20544),
                              (560, 3800, 14000, 20000, 26000, 33000, 33000)),
    "nvidia/Llama-3.1-8B-Instruct-NVFP4": ((282, 2155, 8906, 13154, 17608, 21061, 20579),
                                           (590, 4000, 15000, 21000, 28000, 34000, 34000)),
    "meta-llama/Llama-3.1-8B-Instruct": ((202, 1549, 9521, 18116, 32397, 41168, 38307),
                                         (240, 1800, 11000, 20000, 33000, 42000, 40000)),
    "nvidia/Qwen3-30B-A3B-NVFP4": ((230, 1174, 5122, 12235, 11341, 31604, 33478),
                                   (850, 2300, 8000, 19000, 20000, 48000, 65000)),
    "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4": ((182, 1065, 3285, 7874, 4878, 17913, 30025),
                                                 (500, 1900, 4500, 10000, 14000, 40000, 60000)),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": ((360, 1815, 6121, None, 9397, 28611, 34685),
                                                    (750, 2600, 8000, None, 18000, 50000, 70000)),
}


def goal_of(row):
    if row["dense"] == "bf16":
        return BF16_GOALS.get(row["test"])
    if row["activations"] == "fp8":
        return FP8_GOALS.get(row["test"])
    return {**GOALS, "pp8192": 48000}.get(row["test"])


def number(value):
    return "" if value is None else f"{value:,.0f}"


def value_of(row):
    """Bold where the goal is reached."""
    reached = row["goal"] is not None and row["value"] >= row["goal"]
    return f"**{number(row['value'])}**" if reached else number(row["value"])


def print_rows(rows):
    print("| test | dense | activations | tokens/s | goal | peer | floor | of floor |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['test']} | {row['dense']} | {row['activations']} | {value_of(row)} | {number(row['goal'])} | "
              f"{number(row['peer_value'])} | {number(row['floor'])} | {100 * row['ratio']:.0f}% |")


def print_families(results):
    """tokens/s (of floor), and below what was asked for (the peer)."""
    tests = list(dict.fromkeys(row["test"] for result in results for row in result["rows"]))
    print("| | " + " | ".join(tests) + " |\n|" + "---|" * (1 + len(tests)))
    for result in results:
        rows = {row["test"]: row for row in result["rows"]}
        cells = []
        for test in tests:
            row = rows.get(test)
            asked = f"<br>{number(row['goal'])} ({number(row['peer_value'])})" if row and row["goal"] else ""
            cells.append(f"{value_of(row)} ({100 * row['ratio']:.0f}%){asked}" if row else "")
        print(f"| {result['model']} | " + " | ".join(cells) + " |")


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
    table, families, profiles, ops = [], [], [], []
    for file, result in results.items():
        family = FAMILIES.get(result.get("model"))
        if family:
            families.append(result)
        for row in result.get("rows", []):
            if "op" in row:
                ops.append(row)
                continue
            test = row["test"]
            peer, goal = PEERS.get(test), goal_of(row)
            if family:
                peer, goal = (figures[TESTS.index(test)] if test in TESTS else None for figures in family)
            name = "vLLM 0.24, one H200" if family else PEER_NAME
            row.update(peer=name if peer else None, peer_value=peer, goal=goal)
            if not family:
                (profiles if "profile" in row else table).append(row)
        file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if table:
        print_rows(table)
    if families:
        print_families(families)
    for row in profiles:
        print_profile(row)
    if ops:
        print_ops(ops)


if __name__ == "__main__":
    main()
