#!/usr/bin/env python3
"""nibble's tokenizer and Hugging Face `tokenizers`, side by side on one thread: loading, ordinary
texts, and 10 MB texts that are hostile to tokenizers. Checks that both give the same ids.

Each program is timed in a process of its own on the same file, best of --repeats. nibble runs as
tokenizer_bench, whose JSON is read; the ids are compared through `nibble tokenize`.

usage: tools/bench_tokenizer.py --build build/cpu --tokenizer tokenizer.json [--text NAME=FILE]...
           [--out bench/results/DATE-cpu-tokenizer.json]      (needs PyPI tokenizers)
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

MB = 1_000_000
HOSTILE = {  # name: the unit that is repeated to 10 MB
    "a": "a", "spaces": " ", "newlines": "\n", "a b": "a b ", "digits": "7", "punctuation": "!",
    "combining marks": "\u0301", "han": "\u65e5", "emoji": "\U0001f496", "<|": "<|"}


def peer(tokenizer_file, text_file, repeats):
    """Runs in a process of its own: prints load and encode seconds and the hash of the ids."""
    from tokenizers import Tokenizer
    begin = time.perf_counter()
    tokenizer = Tokenizer.from_file(tokenizer_file)
    load = time.perf_counter() - begin
    tokenizer.encode_special_tokens = True
    text = pathlib.Path(text_file).read_bytes().decode()
    best, ids = float("inf"), []
    for _ in range(repeats):
        begin = time.perf_counter()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        best = min(best, time.perf_counter() - begin)
    print(json.dumps({"load_s": load, "encode_s": best, "ids": len(ids), "hash": hash_of(ids)}))


def hash_of(ids):
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()


def run(command, **env):
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_tokenizer: {' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def ours(build, tokenizer_file, text_file, repeats):
    out = json.loads(run([build / "tokenizer_bench", "--benchmark_format=json",
                          f"--benchmark_repetitions={repeats}"],
                         NIBBLE_TOKENIZER=tokenizer_file, NIBBLE_TEXT=text_file))
    best = {}
    for row in out["benchmarks"]:
        if row["run_type"] == "iteration":
            seconds = row["real_time"] / 1e3
            best[row["run_name"]] = min(seconds, best.get(row["run_name"], seconds))
    with open(text_file, encoding="utf-8") as text:
        ids = subprocess.run([build / "nibble", "tokenize", tokenizer_file], stdin=text,
                             capture_output=True, check=True, text=True).stdout.split()
    return {"load_s": best["load"], "encode_s": best["encode/text"], "ids": len(ids),
            "hash": hash_of(ids)}


def cpu_name():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def row(test, unit, value, peer_value, ratio):
    """peer_value and ratio are None where the peer crashed."""
    return {"test": test, "streams": 1, "value": float(f"{value:.4g}"), "unit": unit,
            "peer": "tokenizers", "peer_value": peer_value and float(f"{peer_value:.4g}"),
            "ratio": ratio and round(ratio, 2), "goal": 1.0}


def peer_in_a_process(args, text_file, repeats):
    """None where it fails: its regular expression engine panics on some long runs."""
    done = subprocess.run([sys.executable, __file__, "--peer", "--tokenizer", args.tokenizer,
                           "--text", f"x={text_file}", "--repeats", str(repeats)],
                          capture_output=True, text=True)
    if "PanicException" in done.stderr:
        return None
    if done.returncode != 0:
        sys.exit(f"bench_tokenizer: {done.stderr}")
    return json.loads(done.stdout)


def measure(args, name, text_file, repeats):
    """The row of one text, and the row of loading where the peer lived."""
    a = ours(args.build, args.tokenizer, text_file, repeats)
    b = peer_in_a_process(args, text_file, repeats)
    if b and a["hash"] != b["hash"]:
        sys.exit(f"bench_tokenizer: {name}: the ids differ")
    megabytes = os.path.getsize(text_file) / MB
    encode = row(f"encode {name}, {megabytes:.1f} MB", "MB/s", megabytes / a["encode_s"],
                 b and megabytes / b["encode_s"], b and b["encode_s"] / a["encode_s"])
    print(f"{encode['test']:36} {encode['value']:8.2f} MB/s   tokenizers " +
          (f"{encode['peer_value']:8.2f}   ratio {encode['ratio']:6.2f}" if b else "panics"),
          flush=True)
    load = b and row("load tokenizer.json", "s", a["load_s"], b["load_s"], b["load_s"] / a["load_s"])
    return encode, load


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/cpu"))
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.tokenizer, args.text[0].split("=", 1)[1], args.repeats)

    from tokenizers import __version__ as peer_version
    rows, loads = [], []

    def add(name, file, repeats):
        encode, load = measure(args, name, file, repeats)
        rows.append(encode)
        loads.extend([load] if load else [])

    for spec in args.text:
        add(*spec.split("=", 1), args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        for name, unit in HOSTILE.items():
            file = os.path.join(folder, "text")
            data = unit.encode()
            pathlib.Path(file).write_bytes(data * (10 * MB // len(data)))
            add(name + " only", file, 1)
    commit = run(["git", "rev-parse", "--short", "HEAD"]).strip()
    result = {"date": datetime.date.today().isoformat(), "commit": commit, "device": cpu_name(),
              "threads": 1, "peer": f"tokenizers {peer_version} (PyPI)",
              "command": "tools/bench_tokenizer.py", "tokenizer": "o200k_harmony",
              "rows": loads[:1] + rows}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
