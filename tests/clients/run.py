#!/usr/bin/env python3
"""Installs real clients, each by version and hash in an environment of its own (build/clients), and drives them against a
`nibble serve` of the shipped model.

usage: tests/clients/run.py [NAME...]          all, without names; NIBBLE is the program
       tests/clients/run.py --lock [NAME...]   resolves what the first lines of the programs ask for, and writes locks/NAME.txt
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
from serving import NAME, Server  # noqa: E402

UV = ROOT / "build/uv/bin/uv"
ANSWER = "The capital of France is Paris."
# Wheels that a machine nibble runs on may take: any, or glibc on x86-64 and arm64, of the distributions' Python.
FITS = re.compile(r"-none-any\.whl$|-(cp3\d+-abi3|cp31[12]-cp31[12]|py3-none)-(manylinux|linux)[^-]*_(x86_64|aarch64)\.whl$")


def requirements(program):
    """Of its first line: packages with versions, and with '!' those that stay away."""
    words = program.read_text().split("\n", 1)[0].removeprefix("# needs:").split()
    return [w for w in words if not w.startswith("!")], [w[1:] for w in words if w.startswith("!")]


def lock(name):
    wanted, unwanted = requirements(HERE / f"{name}_client.py")
    if not wanted:
        return
    work = ROOT / "build/clients/.lock"
    work.mkdir(parents=True, exist_ok=True)
    (work / "in").write_text("\n".join(wanted))
    (work / "override").write_text("".join(f"{p} ; sys_platform == 'never'\n" for p in unwanted))
    subprocess.run([UV, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--format", "pylock.toml",
                    "--override", work / "override", work / "in", "-o", work / "pylock.toml"], check=True)
    lines = []
    for package in tomllib.loads((work / "pylock.toml").read_text())["packages"]:
        marker = package.get("marker", "")
        if re.search(r"== '(emscripten|win32|darwin|never)'", marker):
            continue
        if marker in ("sys_platform != 'emscripten'", "sys_platform != 'win32'"):
            marker = ""
        files = [w for w in package.get("wheels", []) if FITS.search(w["url"])] or [package["sdist"]]
        hashes = "".join(f" \\\n    --hash=sha256:{h}" for h in sorted(f["hashes"]["sha256"] for f in files))
        lines.append(f"{package['name']}=={package['version']}{' ; ' + marker if marker else ''}{hashes}\n")
    (HERE / f"locks/{name}.txt").write_text("".join(lines))
    print(f"{name}: {len(lines)} packages")


def install(name):
    """The Python of the client's environment."""
    path, lines = ROOT / f"build/clients/{name}", HERE / f"locks/{name}.txt"
    if not lines.exists():
        return sys.executable
    stamp, digest = path / "nibble.stamp", hashlib.sha256(lines.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"installing {name}", flush=True)
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", "/usr/bin/python3", path], check=True)
        subprocess.run([UV, "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--python", path, "-r", lines],
                       check=True)
        stamp.write_text(digest)
    return path / "bin/python"


def ask(server):
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def faults_after(server, log_from):
    """What a client may not leave behind: work that goes on, another answer, complaints in the log."""
    for _ in range(100):
        load = server.get("/load")
        if load["requests_running"] + load["requests_waiting"] == 0:
            break
        time.sleep(0.1)
    else:
        yield f"the server is still at work: {load}"
    if (answer := ask(server)) != ANSWER:
        yield f"the server now answers {answer!r}"
    yield from (line.strip() for line in server.log[log_from:] if re.search(r" error ", line))


def drive(server, name):
    python, log_from, begun = install(name), len(server.log), time.time()
    program = HERE / f"{name}_client.py"
    print(f"{name}: {', '.join(requirements(program)[0]) or 'of the distribution'}", flush=True)
    environment = {**os.environ, "NIBBLE_URL": server.url, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
                   "LITELLM_LOCAL_MODEL_COST_MAP": "True", "ANONYMIZED_TELEMETRY": "False"}
    try:
        status = subprocess.run([python, program], env=environment, timeout=900).returncode
    except subprocess.TimeoutExpired:
        status = "more than 900 s"
    faults = list(faults_after(server, log_from))
    for fault in faults:
        print(f"  FAILED  afterwards: {fault}")
    print(f"  {time.time() - begun:.0f} s", flush=True)
    return status == 0 and not faults


def main():
    names = [a for a in sys.argv[1:] if a != "--lock"] or sorted(
        p.name.removesuffix("_client.py") for p in HERE.glob("*_client.py"))
    if "--lock" in sys.argv:
        for name in names:
            lock(name)
        return 0
    for name in names:
        install(name)
    with Server("--exact", "--served-model-name", NAME, max_model_len=32768) as server:
        failed = [name for name in names if not drive(server, name)]
    print(f"{len(names)} clients, {len(failed)} failed: {' '.join(failed)}" if failed else f"{len(names)} clients, all well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
