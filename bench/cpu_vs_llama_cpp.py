#!/usr/bin/env python3
"""nibble beside llama.cpp on this machine's CPU: gpt-oss-20b's shape, random weights.

Builds llama.cpp from the source that PyPI's llama-cpp-python carries, with this machine's flags,
into build/peers; writes a GGUF of the same shape (bench/random_gguf.py); then runs each test on
nibble and on the peer in turn, several times, and takes medians. Prints a table and writes it in
the results' schema (docs/design.md, section 9).

  prompts of 512 and 2,048 tokens; decoding 128 tokens at depth 0 and 4,096; 1, 4, 8 and 16 streams
  that decode together, prompt 128 each (aggregate).

--ik-llama-cpp DIR: also ik_llama.cpp, from a checkout that the user has; built there.
Nothing else may run on the machine. 16 GB of memory and 13 GB of disk.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "build" / "peers"
PACKAGE = "llama-cpp-python==0.3.36"
TOOLS = ["llama-bench", "llama-batched-bench"]
GOALS = {"tg 1": 0.85, "tg 8": 0.75}  # of the read bandwidth
PROMPTS, DEPTHS, STREAMS, NEW_TOKENS = [512, 2048], [0, 4096], [1, 4, 8, 16], 128


def run(command, **options):
    print("+", " ".join(map(str, command)), file=sys.stderr, flush=True)
    return subprocess.run(list(map(str, command)), check=True, **options)


def output(command):
    return run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def build_tools(source, build, extra):
    """llama-bench and llama-batched-bench of a checkout, with native flags."""
    if not all((build / "bin" / tool).exists() for tool in TOOLS):
        run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
             "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", *extra])
        run(["cmake", "--build", build, "-j", "--target", *TOOLS])
    return build / "bin"


def python():
    """A virtual environment with gguf and numpy."""
    venv = PEERS / "venv"
    if not venv.exists():
        run([sys.executable, "-m", "venv", venv])
        run([venv / "bin/pip", "install", "-q", "gguf", "numpy", "scikit-build-core"])
    return venv / "bin/python"


def llama_cpp(args):
    source = PEERS / "llama_cpp_python-0.3.36" / "vendor" / "llama.cpp"
    if not source.exists():
        run([python(), "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation",
             "--no-binary", "llama-cpp-python", "-d", PEERS, PACKAGE])
        with tarfile.open(next(PEERS.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(PEERS)
    return {"name": "llama.cpp (" + PACKAGE + ")", "flags": ["-fa", args.flash_attention],
            "cold": ["--no-warmup"],
            "bin": build_tools(source, PEERS / "llama.cpp",
                               ["-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"])}


def ik_llama_cpp(checkout):
    commit = output(["git", "-C", checkout, "rev-parse", "--short", "HEAD"]).strip()
    return {"name": "ik_llama.cpp " + commit, "flags": ["-rtr", "1", "-fa", "1"],
            "cold": ["-w", "0"],
            "bin": build_tools(checkout, checkout / "build-native", [])}


def bench_rows(text):
    """llama-bench's rows: with -o json, whatever is printed around them."""
    return json.loads(text[text.index("["):text.rindex("]") + 1])


def batched_rows(text):
    """{streams: tokens/s} of llama-batched-bench's table: PP | TG | B | N_KV | .. | S_TG | .."""
    rates = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) >= 8 and all(re.fullmatch(r"\d+", c) for c in cells[:4]):
            rates[int(cells[2])] = float(cells[7])
    return rates


def measure_peer(peer, gguf, args):
    """{test: tokens/s}, one run. The first test warms the pages of the model for all."""
    common = ["-m", gguf, "-t", args.threads]
    rates = {}

    def bench(*test):
        flags = peer["flags"] + (peer["cold"] if rates else [])
        for row in bench_rows(output([peer["bin"] / "llama-bench", *common, *flags, "-r", 1, "-o",
                                      "json", *test])):
            name = f"pp{row['n_prompt']}" if row["n_prompt"] else "tg 1"
            rates[name + (f" @{row['n_depth']}" if row.get("n_depth") else "")] = row["avg_ts"]

    for prompt in args.prompts:
        bench("-p", prompt, "-n", 0)
    for depth in args.depths:
        bench("-p", 0, "-n", NEW_TOKENS, *(["-d", depth] if depth else []))
    many = [s for s in args.streams if s > 1]
    if many:
        context = max(many) * (128 + NEW_TOKENS) + 256
        text = output([peer["bin"] / "llama-batched-bench", *common, *peer["flags"], "-c", context,
                       "-npp", 128, "-ntg", NEW_TOKENS, "-npl", ",".join(map(str, many))])
        rates |= {f"tg {s}": rate for s, rate in batched_rows(text).items()}
    return rates


def measure_nibble(dense, args):
    """nibble bench's report, one load for all tests."""
    common = [args.nibble, "bench", "openai/gpt-oss-20b", "--load-format", "dummy", "--device",
              "cpu", "--threads", args.threads, "--dense-format", dense, "--json", "-r", 1,
              "--max-num-batched-tokens", 2048, *args.nibble_flags]
    new = NEW_TOKENS if 0 in args.depths else 0
    report = json.loads(output([*common, "-p", ",".join(map(str, args.prompts or [0])),
                                "-n", new, "--streams", ",".join(map(str, args.streams))]))
    for depth in filter(None, args.depths):
        deep = json.loads(output([*common, "-p", 0, "-n", NEW_TOKENS, "-d", depth]))
        report["rows"] += deep["rows"]
    return report


def joined(reports, rates, peer):
    """One row per test: medians of both, and how they compare."""
    rows = []
    for row in reports[0]["rows"]:
        same = [r for report in reports for r in report["rows"] if r["test"] == row["test"]]
        row = dict(row, value=statistics.median(r["value"] for r in same))
        row["percent_of_read"] = statistics.median(r["percent_of_read"] for r in same)
        theirs = [r[row["test"]] for r in rates if row["test"] in r]
        if theirs:
            row |= {"peer": peer["name"], "peer_value": statistics.median(theirs)}
            row["ratio"] = row["value"] / row["peer_value"]
        row["goal"] = GOALS.get(row["test"])
        rows.append(row)
    return rows


def print_table(rows):
    print(f"{'test':<12}{'dense':<8}{'nibble t/s':>11}{'of read':>9}{'peer t/s':>10}{'ratio':>7}  peer")
    for row in rows:
        peer = f"{row['peer_value']:.2f}" if row["peer_value"] else "-"
        ratio = f"{row['ratio']:.2f}" if row["peer_value"] else "-"
        print(f"{row['test']:<12}{row['dense']:<8}{row['value']:>11.2f}"
              f"{row['percent_of_read']:>8.1f}%{peer:>10}{ratio:>7}  {row['peer'] or ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(n) for n in text.split(",") if n]
    add = parser.add_argument
    add("--nibble", type=pathlib.Path, default=ROOT / "build/cpu/nibble")
    add("--nibble-flags", type=str.split, default=[], help="further flags of nibble bench")
    add("--threads", type=int, default=2)
    add("--dense", default="mxfp8,mxfp4", help="formats of nibble's dense layers")
    add("--prompts", type=numbers, default=PROMPTS)
    add("--depths", type=numbers, default=DEPTHS)
    add("--streams", type=numbers, default=STREAMS)
    add("--repeats", type=int, default=3)
    add("--flash-attention", default="on", help="llama.cpp's -fa")
    add("--ik-llama-cpp", type=pathlib.Path, metavar="DIR")
    add("--gguf", type=pathlib.Path, default=PEERS / "gpt-oss-20b-random.gguf")
    add("--output", type=pathlib.Path)
    args = parser.parse_args()
    PEERS.mkdir(parents=True, exist_ok=True)
    peers = [llama_cpp(args)]
    if args.ik_llama_cpp:
        peers.append(ik_llama_cpp(args.ik_llama_cpp))
    if not args.gguf.exists():
        part = args.gguf.with_suffix(".part")
        run([python(), ROOT / "bench/random_gguf.py", part])
        part.rename(args.gguf)

    reports, rates = {}, {peer["name"]: [] for peer in peers}
    for _ in range(args.repeats):
        for dense in args.dense.split(","):
            reports.setdefault(dense, []).append(measure_nibble(dense, args))
        for peer in peers:
            rates[peer["name"]].append(measure_peer(peer, args.gguf, args))
    rows = [row for all_of_dense in reports.values() for peer in peers
            for row in joined(all_of_dense, rates[peer["name"]], peer)]
    print_table(rows)
    first = next(iter(reports.values()))[0]
    result = {key: first[key] for key in ("commit", "device", "instruction_sets", "routing_balance")}
    result["read_bandwidth"] = statistics.median(
        r["read_bandwidth"] for all_of_dense in reports.values() for r in all_of_dense)
    result = {"command": "bench/cpu_vs_llama_cpp.py " + " ".join(sys.argv[1:])} | result
    path = args.output or ROOT / "bench/results" / (time.strftime("%Y-%m-%d") + "-cpu-vs-llama-cpp.json")
    path.write_text(json.dumps(result | {"repeats": args.repeats, "rows": rows}, indent=2) + "\n")
    print("written:", path)


if __name__ == "__main__":
    main()
