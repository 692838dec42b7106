"""What the programs of this folder share. Each drives one client, unmodified and in an environment of its own, configured by
the very snippet that docs/clients.md shows, and is run by run.py."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
URL = os.environ.get("NIBBLE_URL", "http://127.0.0.1:8000")
MODEL = "nibble-tiny-gpt-oss"
BIN = Path(sys.executable).parent

PARIS = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
WEATHER = "What is the weather in Paris?"
RESULT = '{"temperature": 21}'
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"]}
LONG = "word " * 40_000  # more than the server's window
SEEDS = (1, 2, 3)
LOOP = asyncio.new_event_loop()
asyncio.set_event_loop(LOOP)


def snippet(name):
    """The first block of docs/clients.md under the heading `name`, with this run's server in it."""
    text = (ROOT / "docs/clients.md").read_text()
    block = re.search(rf"^### {re.escape(name)}\n.*?^```(?:python|sh|toml|yaml)\n(.*?)^```", text, re.S | re.M)
    if not block:
        sys.exit(f"docs/clients.md has no block under '### {name}'")
    return block[1].replace("http://127.0.0.1:8000", URL).replace("127.0.0.1:8000", URL.removeprefix("http://"))


def shell(command, stdin=None, timeout=300, fails=False, **environment):
    """The output of a shell command, in a new folder, with the client's programs on the path and a home of its own."""
    home = Path(tempfile.mkdtemp(prefix="nibble-client-"))
    (home / "work").mkdir()
    variables = {"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb", "NO_COLOR": "1", **environment}
    done = subprocess.run(["bash", "-ec", command], cwd=home / "work", env=variables, text=True, input=stdin,
                          stdin=subprocess.DEVNULL if stdin is None else None, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=timeout)
    assert (done.returncode != 0) == fails, f"exit status {done.returncode}: {done.stdout[-900:]}"
    return done.stdout


def running():
    """How many sequences the server is at work on."""
    with urllib.request.urlopen(URL + "/load") as answer:
        load = json.load(answer)
    return load["requests_running"] + load["requests_waiting"]


def same(got, expected):
    assert got == expected, f"{got!r} instead of {expected!r}"


def holds(text, part):
    assert part in text, f"no {part!r} in {text!r}"


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def wait(awaitable):
    """Its result; one loop for all, as clients keep connections that belong to theirs."""
    return LOOP.run_until_complete(awaitable)


def reason(info):
    """What was raised, and from which lines of the program that drives the client."""
    lines = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(info[2]) if "tests/clients" in f.filename]
    return f"{info[0].__name__}: {str(info[1])[-900:]} ({', '.join(lines[1:])})"


def run(namespace):
    """Runs every check_* of a program; exit status 1 if one fails."""
    failed = 0
    for name, check in list(namespace.items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            print(f"  ok      {name.removeprefix('check_')}", flush=True)
        except Exception:
            failed += 1
            print(f"  FAILED  {name.removeprefix('check_')}: {reason(sys.exc_info())}", flush=True)
    sys.exit(failed > 0)
