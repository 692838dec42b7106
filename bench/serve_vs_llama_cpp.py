#!/usr/bin/env python3
"""`nibble serve` beside llama.cpp's server on this machine's CPU, both under `nibble bench serve`.

The shape is gpt-oss-20b's cut to a few layers, with random weights and o200k's tokenizer: experts
MXFP4 on both sides, dense layers Q8_0 there and MXFP8 here. Each server runs alone, gets one
request to warm up, and then closed loops of 1 and 4 clients. Nothing else may run.

usage: serve_vs_llama_cpp.py LLAMA_SERVER DIR [--nibble build/cpu/nibble] [--threads 2] [--json FILE]
DIR: config.json and tokenizer.json of the shape, and model.gguf, written by
     random_gguf.py DIR/model.gguf --layers N --tokenizer DIR/tokenizer.json
"""
import argparse
import json
import subprocess
import time
import urllib.error
import urllib.request

PORT = 18080
STREAMS, WORDS, NEW_TOKENS = [1, 4], 64, 32


def wait_until_ready(server):
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit(f"{server.args[0]} ended with {server.returncode}")


def measure(args, name, command):
    """Reports of `nibble bench serve`, one for each number of clients."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server)
        reports = []
        for streams, requests, seed in [(1, 1, 99), *((s, 2 * s, s) for s in STREAMS)]:
            bench = [args.nibble, "bench", "serve", "--base-url", f"http://127.0.0.1:{PORT}/v1",
                     "--endpoint", "completions", "--concurrency", str(streams), "--requests",
                     str(requests), "--prompt-words", str(WORDS), "--new-tokens", str(NEW_TOKENS),
                     "--ignore-eos", "--seed", str(seed), "--label", name, "--json"]
            reports.append(json.loads(subprocess.run(bench, check=True, capture_output=True).stdout))
        return reports[1:]
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("llama_server")
    parser.add_argument("directory")
    parser.add_argument("--nibble", default="build/cpu/nibble")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--json", help="write the reports here")
    args = parser.parse_args()
    streams = max(STREAMS)
    peer = measure(args, "llama.cpp", [
        args.llama_server, "-m", args.directory + "/model.gguf", "-t", args.threads, "-np",
        str(streams), "-c", str(1024 * streams), "--port", str(PORT), "--no-webui"])
    ours = measure(args, "nibble", [
        args.nibble, "serve", args.directory, "--load-format", "dummy", "--dense-format", "mxfp8",
        "--threads", args.threads, "--max-num-seqs", str(streams), "--max-model-len", "1024",
        "--port", str(PORT), "--device", "cpu"])
    print(f"{'test':28} {'nibble':>9} {'llama.cpp':>9}")
    for mine, other in zip(ours, peer):
        for row, theirs in zip(mine["rows"], other["rows"]):
            row["peer"], row["peer_value"] = "llama.cpp", theirs["value"]
            print(f"{row['test']:28} {row['value'] or 0:9.1f} {theirs['value'] or 0:9.1f} {row['unit']}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"ours": ours, "peer": peer}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
