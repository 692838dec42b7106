#!/usr/bin/env python3
"""`make install` into an empty folder: the program there serves the small model that came with it,
from any working directory, and so does the container's entry point, told by its variables. The
systemd unit names that program, and the .deb holds what dpkg needs."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ["NIBBLE"]).parent
ENTRY = SOURCE / "packaging/container.sh"


def install(folder, prefix):
    subprocess.run(["cmake", "--install", BUILD, "--strip", "--prefix", prefix], check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "DESTDIR": folder})
    return pathlib.Path(folder + prefix)


def ask(port, path, body=None, key=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}",
                                     json.dumps(body).encode() if body else None)
    request.add_header("Content-Type", "application/json")
    if key:
        request.add_header("Authorization", "Bearer " + key)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Serving:
    """A command that serves; ends by SIGTERM, and has to end well."""

    def __init__(self, command, **variables):
        self.program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/",
                                        env={"PATH": "/usr/bin:/bin", **variables})

    def __enter__(self):
        self.log = ""
        for line in self.program.stderr:
            self.log += line
            if found := re.search(r"ready: chat at http://\S+?:(\d+),", line):
                self.port = int(found[1])
                return self
        raise RuntimeError("it did not start:\n" + self.log)

    def __exit__(self, *_):
        self.program.send_signal(signal.SIGTERM)
        self.program.stderr.read()
        self.program.stderr.close()
        assert self.program.wait(timeout=60) == 0, self.log


def check_answer(port, key=None):
    answer = ask(port, "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is 12 + 30?"}], "temperature": 0}, key)
    assert "42" in answer["choices"][0]["message"]["content"], answer


def check_installed(folder):
    prefix = install(folder, "/opt/nibble")
    nibble = prefix / "bin/nibble"
    version = subprocess.run([nibble, "--version"], check=True, text=True, capture_output=True).stdout
    said = re.search(r"project\(nibble VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text())[1]
    assert version.startswith(f"nibble {said} (commit "), version

    unit = (prefix / "lib/systemd/system/nibble.service").read_text()
    assert "ExecStart=/opt/nibble/bin/nibble serve $MODEL $ARGS\n" in unit, unit
    assert "@" not in unit, unit
    with Serving([nibble, "serve", "--port", "0", "--device", "cpu"]) as server:
        assert f"no MODEL was said: serving {prefix}/share/nibble/models" in server.log, server.log
        check_answer(server.port)
    check_container(prefix)


def check_container(prefix):
    path = f"{prefix}/bin:/usr/bin:/bin"
    model = SOURCE / "models/nibble-tiny-gpt-oss"
    with Serving([ENTRY], PATH=path, PORT="0", HOST="127.0.0.1", MODEL=str(model), MAX_MODEL_LEN="777",
                 MAX_NUM_SEQS="3", GPU_MEMORY_UTIL="0.5", TENSOR_PARALLEL_SIZE="1", NIBBLE_API_KEY="k1",
                 VLLM_EXTRA_ARGS="--served-model-name 'a name' --kv-cache-dtype fp8",
                 NIBBLE_ARGS="--device cpu") as server:
        check_answer(server.port, "k1")
        served = ask(server.port, "/v1/models", key="k1")["data"][0]
        assert (served["id"], served["max_model_len"]) == ("a name", 777), served
        healthy = subprocess.run([ENTRY, "healthy"], env={"PATH": path, "PORT": str(server.port)})
        assert healthy.returncode == 0
    gone = subprocess.run([ENTRY, "healthy"], env={"PATH": path, "PORT": str(server.port)},
                          capture_output=True)
    assert gone.returncode != 0
    for words, status, said in ((["ray-head"], 2, "starts its ranks itself"), (["--version"], 0, "nibble "),
                                (["bash", "-c", "echo hello"], 0, "hello")):
        run = subprocess.run([ENTRY, *words], env={"PATH": path}, text=True, capture_output=True)
        assert run.returncode == status and said in run.stdout + run.stderr, (words, run)
    # Half of the flags may be without a key: none is served.
    run = subprocess.run([ENTRY], env={"PATH": path, "VLLM_EXTRA_ARGS": "--enforce-eager 'x", "NIBBLE_ARGS": "--api-key k1"},
                         text=True, capture_output=True, timeout=60)
    assert run.returncode == 2 and "a quote is not closed" in run.stderr, run


def check_deb(folder):
    """Of what tools/package.sh packs: fields that the program gives, a conffile, no file of others."""
    subprocess.run([SOURCE / "tools/package.sh", BUILD.name, folder], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "DPKG_DEB_COMPRESSOR_LEVEL": "1"})  # nobody installs this one
    deb, = pathlib.Path(folder).glob("*.deb")
    tell = lambda *words: subprocess.run(["dpkg-deb", *words], check=True, text=True,
                                         capture_output=True).stdout
    fields = dict(line.split(": ", 1) for line in tell("--field", deb).splitlines() if ": " in line)
    assert re.fullmatch(r"libc6 \(>= 2\.\d\d\), adduser", fields["Depends"]), fields
    assert tell("--info", deb, "conffiles") == "/etc/nibble.env\n"
    files = tell("--contents", deb)
    assert "-rw------- root/root" in next(l for l in files.splitlines() if "nibble.env" in l), files
    assert "./usr/share/nibble/models/nibble-tiny-gpt-oss/model.safetensors" in files
    assert all(line.split()[1] == "root/root" for line in files.splitlines()), files
    tarball, = pathlib.Path(folder).glob("*.tar.gz")
    names = subprocess.run(["tar", "-tzf", tarball], check=True, text=True, capture_output=True).stdout
    assert "./bin/nibble\n" in names and "./lib/systemd/system/nibble.service\n" in names, names


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_installed(folder)
    sanitizers = re.search(r"NIBBLE_SANITIZE:STRING=(.*)", (BUILD / "CMakeCache.txt").read_text())[1]
    if shutil.which("dpkg-deb") and not sanitizers:  # whose libraries no package names
        with tempfile.TemporaryDirectory() as folder:
            check_deb(folder)
    print("installed, it serves")


if __name__ == "__main__":
    sys.exit(main())
