#!/usr/bin/env python3
"""Runs the examples of README.md against the built program, as a reader would, and holds the flags
that docs/ explains against those of `nibble serve --help`.

And docs/clients.md against the programs of tests/clients: each has its row, with the version that is driven,
and its snippet.

Every block fenced as `sh` is run by bash from the root of the tree, with http://127.0.0.1:8000 and
build/cpu/nibble replaced by a server and a binary of this test. It must exit with 0 (curl is told
--fail) and print something; answers are checked for what a right one holds.
"""
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
NIBBLE = os.environ["NIBBLE"]
MODEL = ROOT / "models/nibble-tiny-gpt-oss"
# What the output of a block must hold, by a piece of the block.
EXPECTED = {
    "What is 12 + 30?": "42",
    '"stream": true': "data: [DONE]",
    "/v1/models": "nibble-tiny-gpt-oss",
    "gpt-oss-120b --device gb10": "5,002,907,904",
    "capital of Japan": "Tokyo",
    "doctor": "norm_unembed",
    "bench": "pp512",
}


def start_server():
    """A server on a free port; returns the process and its address."""
    log = open(os.environ.get("NIBBLE_DOCS_LOG", os.devnull), "w+")
    port = free_port()
    process = subprocess.Popen(
        [NIBBLE, "serve", str(MODEL), "--port", str(port), "--device", "cpu"], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the server ended with %d" % process.returncode)
        try:
            urllib.request.urlopen(address + "/health", timeout=1)
            return process, address
        except OSError:
            time.sleep(0.1)
    process.terminate()
    sys.exit("the server did not answer in a minute")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_block(block, address):
    """Runs one block; returns what was wrong, or None."""
    command = block.replace("http://127.0.0.1:8000", address).replace("build/cpu/nibble", NIBBLE)
    result = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, text=True,
                            capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
                            env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if result.returncode != 0:
        return f"exit status {result.returncode}: {result.stderr[-500:]}"
    for piece, expected in EXPECTED.items():
        if piece in block and expected not in result.stdout:
            return f"no {expected!r} in: {result.stdout[-500:]}"
    if not any(piece in block for piece in EXPECTED):
        return "nothing says what its output must hold: add it to EXPECTED"
    return None


def flag_faults():
    """What is wrong with the tables of flags, a line each."""
    text = subprocess.run([NIBBLE, "serve", "--help"], text=True, capture_output=True, check=True).stdout
    flag = r"(?<![\w-])--[a-z][a-z0-9-]+"
    known = set(re.findall(flag, text)) - {"--help"}
    operations = (ROOT / "docs/operations.md").read_text()
    told = set(re.findall(flag, operations + (ROOT / "docs/flags.md").read_text()))
    rows = [set(re.findall(flag, line.split("|")[1])) for line in operations.splitlines()
            if line.startswith("| `--")]
    if len(rows) < 20:
        return [f"docs/operations.md: {len(rows)} rows of flags found, there were more"]
    return ([f"docs/operations.md explains {name}, which serve does not have"
             for name in sorted(set().union(*rows) - known)] +
            [f"serve has {name}, which docs/ do not name" for name in sorted(known - told)])


def client_faults():
    """What docs/clients.md lacks of the clients that are driven, a line each."""
    text = (ROOT / "docs/clients.md").read_text()
    programs = sorted((ROOT / "tests/clients").glob("*_client.py"))
    if len(programs) < 15:
        return [f"tests/clients has {len(programs)} programs, there were more"]
    faults = []
    for program in programs:
        source = program.read_text()
        pinned = [re.sub(r"\[.*\]", "", word) for word in source.split("\n", 1)[0].split() if "==" in word]
        lock = ROOT / f"tests/clients/locks/{program.stem.removesuffix('_client')}.txt"
        locked = lock.read_text() if lock.exists() else ""
        faults += [f"{lock.name} is not of {word}" for word in pinned if f"\n{word} " not in "\n" + locked]
        for name in re.findall(r"snippet\(['\"](.*?)['\"]\)", source):
            row = re.search(rf"^\| {re.escape(name)} \|.*$", text, re.M)
            if not row or (pinned and pinned[0].split("==")[1] not in row[0]):
                faults.append(f"docs/clients.md: no row for {name} with {pinned[:1]}")
            if f"\n### {name}\n" not in text:
                faults.append(f"docs/clients.md: nothing under {name}")
    return faults


def main():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    if len(blocks) < len(EXPECTED):
        sys.exit(f"README.md has {len(blocks)} examples, {len(EXPECTED)} are expected")
    process, address = start_server()
    failed = 0
    try:
        for block in blocks:
            fault = run_block(block, address)
            failed += fault is not None
            print(("FAILED " if fault else "ok     ") + block.splitlines()[0])
            if fault:
                print("  " + fault)
    finally:
        process.terminate()
        process.wait(timeout=30)
    faults = flag_faults() + client_faults()
    failed += len(faults)
    for fault in faults:
        print("FAILED " + fault)
    print(f"{len(blocks) + 2} run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
