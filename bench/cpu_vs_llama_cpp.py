#!/usr/bin/env python3
"""nibble beside llama.cpp on this machine's CPU: gpt-oss-20b's shape, random weights.

Builds llama.cpp from the source that PyPI's llama-cpp-python carries, with this machine's flags,
into build/peers; writes a GGUF of the same shape (bench/random_gguf.py); then runs each test on
nibble and on the peers in turn and keeps every sample in the output file, in the results' schema
(docs/design.md, section 9). Rows are medians of their samples.

A whole table takes the peers half an hour, so it can be made in pieces: --tests names the rows of
one run, and a run with the same --output adds to what is there. nibble measures the read bandwidth
before and after its tests; where the probes of a round differ by more than --quiet allows, the
machine was not quiet: the round's samples, of nibble and of peers, are kept and count for nothing.

--ik-llama-cpp DIR: also ik_llama.cpp, from a checkout that the user has; built there.
Nothing else may run on the machine. 16 GB of memory and 13 GB of disk.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "build" / "peers"
PACKAGE = "llama-cpp-python==0.3.36"
TOOL = "llama-batched-bench"
TESTS = ["pp512", "pp2048", "tg 1", "tg 1 @4096", "tg 4", "tg 8", "tg 16"]
STREAM_PROMPT = 128
GOALS = {"tg 1": 0.85, "tg 8": 0.75}  # of the read bandwidth


def run(command, **options):
    print("+", " ".join(map(str, command)), file=sys.stderr, flush=True)
    return subprocess.run(list(map(str, command)), check=True, **options)


def output(command, stderr=subprocess.DEVNULL, **options):
    return run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, **options).stdout


def build_tool(source, build, extra):
    """The directory of llama-batched-bench, built with native flags."""
    if not (build / "bin" / TOOL).exists():
        run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
             "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", *extra])
        run(["cmake", "--build", build, "-j", "--target", TOOL])
    return build / "bin"


def python():
    """A virtual environment with gguf and numpy."""
    venv = PEERS / "venv"
    if not venv.exists():
        run([sys.executable, "-m", "venv", venv])
        run([venv / "bin/pip", "install", "-q", "gguf", "numpy", "scikit-build-core"])
    return venv / "bin/python"


def build_llama_cpp():
    source = PEERS / "llama_cpp_python-0.3.36" / "vendor" / "llama.cpp"
    if not source.exists():
        run([python(), "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation",
             "--no-binary", "llama-cpp-python", "-d", PEERS, PACKAGE])
        with tarfile.open(next(PEERS.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(PEERS)
    return build_tool(source, PEERS / "llama.cpp",
                      ["-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"])


def build_ik_llama_cpp(checkout):
    """From a copy: its tool feeds one token over and over, which goes to the same few experts every
    time; in the copy tokens are drawn at random, as llama.cpp's tool draws them."""
    source = PEERS / "ik_llama.cpp"
    if not source.exists():
        shutil.copytree(checkout, source, ignore=shutil.ignore_patterns(".git"))
        tool = source / "examples/batched-bench/batched-bench.cpp"
        text, same = tool.read_text(), "common_batch_add(batch, 0, "
        if same not in text:
            raise SystemExit(f"{tool} no longer has \"{same}\": see how it chooses its tokens now")
        tool.write_text(text.replace(same, "common_batch_add(batch, std::rand() % "
                                           "llama_n_vocab(model), "))
    return build_tool(source, source / "build", [])


def peers(args):
    """Each loads its weights into memory of its own: no page is read first while the clock runs."""
    found = []
    if args.peers != "none":
        found.append({"name": f"llama.cpp ({PACKAGE})",
                      "bin": args.llama_cpp_bin or build_llama_cpp(),
                      "flags": ["-fa", args.flash_attention, "-lm", "none"]})
    if args.ik_llama_cpp:
        commit = args.ik_llama_cpp_commit or output(
            ["git", "-C", args.ik_llama_cpp, "rev-parse", "--short", "HEAD"]).strip()
        found.append({"name": "ik_llama.cpp " + commit,
                      "bin": args.ik_llama_cpp_bin or build_ik_llama_cpp(args.ik_llama_cpp),
                      "flags": ["-fa", "on", "-rtr", "-thp"]})  # repacks at load: its best
    return found


def peer_case(test, new_tokens):
    """(prompt, new tokens, streams) of a test, as the tool takes them."""
    if test.startswith("pp"):
        return int(test[2:]), 1, 1
    streams, depth = re.fullmatch(r"tg (\d+)(?: @(\d+))?", test).groups()
    return int(depth or (1 if streams == "1" else STREAM_PROMPT)), new_tokens, int(streams)


def tool_rates(text):
    """{(prompt, new tokens, streams): (prompt tokens/s, new tokens/s)} of the tool's table:
    PP | TG | B | N_KV | T_PP | S_PP | T_TG | S_TG | .."""
    rates = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) >= 8 and all(re.fullmatch(r"\d+", c) for c in cells[:4]):
            rates[tuple(map(int, cells[:3]))] = float(cells[5]), float(cells[7])
    return rates


def measure_peer(peer, args):
    """{test: tokens/s}; the tests that differ in one thing share one load."""
    values, groups = {}, {}
    for test in args.tests:
        case = peer_case(test, args.new_tokens)
        groups.setdefault((case[1], case[2] > 1), {})[case] = test
    for (new, many_streams), group in groups.items():
        prompts, streams = ({case[i] for case in group} for i in (0, 2))
        # -tb is for prompts, but for steps of several streams, too: there it must not be more.
        untimed = new > 1 and not many_streams and args.prompt_threads
        listed = lambda numbers: ",".join(map(str, sorted(numbers)))
        with tempfile.TemporaryDirectory() as where:  # ik_llama.cpp leaves a log where it runs
            text = output(
                [peer["bin"] / TOOL, "-m", args.gguf, "-t", args.threads, "-tb",
                 untimed or args.threads, *peer["flags"],
                 "-c", max(streams) * (max(prompts) + new) + 256,
                 "-npp", listed(prompts), "-ntg", new, "-npl", listed(streams)],
                cwd=where, stderr=subprocess.STDOUT)  # where ik_llama.cpp writes its table
        rates = tool_rates(text)
        for case, test in group.items():
            if case not in rates:
                raise SystemExit(f"{peer['name']} printed no row for {test}:\n{text[-2000:]}")
            values[test] = rates[case][0 if test.startswith("pp") else 1]
    return values


def measure_nibble(dense, args):
    """nibble bench's report of all tests, one load."""
    tests = [flag for test in args.tests for flag in ("--test", test)]
    return json.loads(output(
        [args.nibble, "bench", "openai/gpt-oss-20b", "--load-format", "dummy", "--device", "cpu",
         "--threads", args.threads, "--dense-format", dense, "--json", "-r", 1,
         "--max-num-batched-tokens", 2048, "-n", args.new_tokens, *tests, *args.nibble_flags]))


def sample(args, found):
    """One round: nibble with each format of dense layers, then each peer; [(who, test, row)]."""
    samples, probes, head = [], [], None
    for dense in args.dense:
        report = measure_nibble(dense, args)
        head = head or {k: report[k] for k in
                        ("commit", "device", "instruction_sets", "routing_balance")}
        probes += [report["read_bandwidth"], report["read_bandwidth_after"]]
        samples += [{"who": "nibble " + dense, "row": row} for row in report["rows"]]
    for peer in found:
        samples += [{"who": peer["name"], "row": {"test": test, "value": value}}
                    for test, value in measure_peer(peer, args).items()]
    quiet = min(probes) >= args.quiet * max(probes)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for s in samples:
        s |= {"when": when, "probes": probes, "quiet": quiet}
    print(f"read bandwidth {', '.join(f'{p / 1e9:.1f}' for p in probes)} GB/s:",
          "quiet" if quiet else "NOT QUIET, kept apart", file=sys.stderr, flush=True)
    return head, samples


def median(samples, key):
    return statistics.median(s["row"][key] for s in samples)


def rows_of(samples):
    """One row per test, format of dense layers and peer: medians, and how they compare."""
    rows, groups = [], {}
    for s in samples:
        if s["quiet"]:
            groups.setdefault((s["row"]["test"], s["who"]), []).append(s)
    for (test, who), ours in groups.items():
        if not who.startswith("nibble "):
            continue
        row = dict(ours[-1]["row"], value=median(ours, "value"), samples=len(ours),
                   percent_of_read=median(ours, "percent_of_read"), goal=GOALS.get(test))
        theirs = [(w, g) for (t, w), g in groups.items() if t == test and not w.startswith("nibble ")]
        for name, group in theirs or [(None, None)]:
            value = group and median(group, "value")
            rows.append(row | {"peer": name, "peer_value": value,
                               "ratio": value and row["value"] / value})
    order = {test: i for i, test in enumerate(TESTS)}
    return sorted(rows, key=lambda r: (r["dense"], order.get(r["test"], len(TESTS))))


def print_table(rows):
    print(f"{'test':<12}{'dense':<7}{'nibble t/s':>11}{'of read':>9}{'peer t/s':>10}{'ratio':>7}  peer")
    for row in rows:
        peer = f"{row['peer_value']:.2f}" if row["peer_value"] else "-"
        ratio = f"{row['ratio']:.2f}" if row["peer_value"] else "-"
        print(f"{row['test']:<12}{row['dense']:<7}{row['value']:>11.2f}"
              f"{row['percent_of_read']:>8.1f}%{peer:>10}{ratio:>7}  {row['peer'] or ''}")


def store(path, command, head, samples):
    """Adds samples to the file, which must be of the same device, and writes its rows anew."""
    result = json.loads(path.read_text()) if path.exists() else {"commands": [], **head}
    for key in ("device", "instruction_sets"):
        if result[key] != head[key]:
            raise SystemExit(f"{path} is of {key} {result[key]}, this run of {head[key]}")
    result |= {"commit": head["commit"], "commands": sorted({*result["commands"], command})}
    result["samples"] = result.get("samples", []) + samples
    probes = [probe for s in result["samples"] if s["quiet"] for probe in s["probes"]]
    result["read_bandwidth"] = statistics.median(probes) if probes else None
    result["rows"] = rows_of(result["samples"])
    path.write_text(json.dumps(result, indent=2) + "\n")
    return result["rows"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = lambda text: [name.strip() for name in text.split(",")]
    add = parser.add_argument
    add("--tests", type=names, default=TESTS, help="rows of this run: " + ", ".join(TESTS))
    add("--repeats", type=int, default=3)
    add("--output", type=pathlib.Path, help="added to if it is there")
    add("--new-tokens", type=int, default=128)
    add("--quiet", type=float, default=0.9, help="least over largest read bandwidth of a round")
    add("--nibble", type=pathlib.Path, default=ROOT / "build/cpu/nibble")
    add("--nibble-flags", type=str.split, default=[], help="further flags of nibble bench")
    add("--threads", type=int, default=2)
    add("--dense", type=names, default=["mxfp8", "mxfp4"], help="formats of nibble's dense layers")
    add("--peers", choices=["all", "none"], default="all", help="none: not llama.cpp")
    add("--prompt-threads", type=int, default=0,
        help="of peers, for prompts that are not timed (tg 1 at a depth)")
    add("--flash-attention", default="on", help="llama.cpp's -fa")
    add("--llama-cpp-bin", type=pathlib.Path, metavar="DIR", help="built already")
    add("--ik-llama-cpp", type=pathlib.Path, metavar="DIR", help="a checkout")
    add("--ik-llama-cpp-bin", type=pathlib.Path, metavar="DIR", help="of it, built already")
    add("--ik-llama-cpp-commit", default="", help="where DIR is no git checkout")
    add("--gguf", type=pathlib.Path, default=PEERS / "gpt-oss-20b-random.gguf")
    args = parser.parse_args()
    for name in ("nibble", "gguf", "llama_cpp_bin", "ik_llama_cpp_bin"):
        if getattr(args, name):
            setattr(args, name, getattr(args, name).resolve())
    return args


def main():
    args = arguments()
    PEERS.mkdir(parents=True, exist_ok=True)
    found = peers(args)
    if found and not args.gguf.exists():
        part = args.gguf.with_suffix(".part")
        run([python(), ROOT / "bench/random_gguf.py", part])
        part.rename(args.gguf)
    path = args.output or ROOT / "bench/results" / (time.strftime("%Y-%m-%d") + "-cpu-vs-llama-cpp.json")
    command = "bench/cpu_vs_llama_cpp.py " + " ".join(sys.argv[1:])
    for _ in range(args.repeats):
        rows = store(path, command, *sample(args, found))
    print_table(rows)
    print("written:", path)


if __name__ == "__main__":
    main()
