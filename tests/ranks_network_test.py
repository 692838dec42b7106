"""Two nodes in network namespaces of their own: a cable is pulled, packets are dropped, the link is slow.

Needs root, `ip` and `iptables`; where they are missing it is skipped (status 77).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from serving import MODEL

RANKS = ("--threads", "1", "--activations", "float", "--kv-cache-dtype", "f32", "--max-model-len", "4096")
NAMES = [f"nibble-{os.getpid()}-{side}" for side in "ab"]
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
PORT = 8123  # in a namespace of its own
# Streams an answer and prints its last event.
CLIENT = """
import json, sys, urllib.request
body = json.loads(sys.argv[1])
request = urllib.request.Request("http://127.0.0.1:%d/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=120) as answer:
    if not body.get("stream"):
        print(json.load(answer)["choices"][0]["text"])
    else:
        print(answer.readline().decode().strip(), flush=True)
        print([line for line in answer.read().decode().splitlines() if line][-2])
""" % PORT


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


def inside(side, *command):
    return ("ip", "netns", "exec", NAMES[side], *command)


def make_network():
    for name in NAMES:
        run("ip", "netns", "add", name)
    run("ip", "link", "add", "link-a", "netns", NAMES[0], "type", "veth", "peer", "name", "link-b", "netns", NAMES[1])
    for side, device in enumerate(("link-a", "link-b")):
        run("ip", "-n", NAMES[side], "addr", "add", ADDRESSES[side] + "/24", "dev", device)
        run("ip", "-n", NAMES[side], "link", "set", device, "up")
        run("ip", "-n", NAMES[side], "link", "set", "lo", "up")
    run(*inside(0, "iptables", "-L"))


def end_network():
    for name in NAMES:
        run("ip", "netns", "del", name, check=False)


class NetworkTest(unittest.TestCase):
    def setUp(self):
        make_network()
        self.addCleanup(end_network)
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        (folder / "key").write_text("f" * 32)
        self.logs = [folder / "log0", folder / "log1"]
        self.nodes = [self.start(rank, folder / "key") for rank in (0, 1)]
        for _ in range(600):
            if "ready: chat at" in self.logs[0].read_text():
                return
            time.sleep(0.1)
        self.fail("rank 0 did not start:\n" + self.logs[0].read_text() + self.logs[1].read_text())

    def start(self, rank, key):
        command = [os.environ["NIBBLE"], "serve", str(MODEL), "--port", str(PORT), "--device", "cpu", *RANKS,
                   "--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", str(rank),
                   "--master-addr", ADDRESSES[0], "--tensor-parallel-key-file", str(key)]
        with self.logs[rank].open("w") as log:
            node = subprocess.Popen(inside(rank, *command), stderr=log)
        self.addCleanup(lambda: (node.kill(), node.wait()))
        return node

    def ask(self, **fields):
        body = {"prompt": "The capital of France is", "temperature": 0, **fields}
        return subprocess.Popen(inside(0, sys.executable, "-c", CLIENT, json.dumps(body)), stdout=subprocess.PIPE, text=True)

    def assert_both_end(self, how):
        """The stream under way ends with an error, and both nodes with status 1."""
        client = self.ask(max_tokens=3900, ignore_eos=True, stream=True)
        self.assertIn("data: {", client.stdout.readline())
        began = time.monotonic()
        how()
        last = client.communicate(timeout=60)[0]
        took = time.monotonic() - began
        self.assertIn("rank 1", last)
        for node in self.nodes:
            self.assertEqual(node.wait(timeout=60), 1)
        print(f"requests ended after {took:.2f} s: {last[:120]}")

    def test_a_pulled_cable(self):
        self.assert_both_end(lambda: run("ip", "-n", NAMES[1], "link", "set", "link-b", "down"))

    def test_packets_that_are_dropped(self):
        for side in (0, 1):
            self.addCleanup(run, *inside(side, "iptables", "-F"), check=False)
        self.assert_both_end(lambda: [run(*inside(side, "iptables", "-A", "INPUT", "-s", ADDRESSES[1 - side], "-j", "DROP"))
                                      for side in (0, 1)])

    def test_a_slow_link(self):
        asked = dict(max_tokens=32)
        want = self.ask(**asked).communicate(timeout=60)[0]
        slow = run("tc", "-n", NAMES[0], "qdisc", "add", "dev", "link-a", "root", "netem", "delay", "2ms", "loss", "1%", check=False)
        if slow.returncode != 0:
            self.skipTest("this kernel has no netem")
        self.assertEqual(self.ask(**asked).communicate(timeout=120)[0], want)


if __name__ == "__main__":
    try:
        make_network()
    except (OSError, subprocess.CalledProcessError) as reason:
        print("skipped: no network namespaces here:", getattr(reason, "stderr", reason))
        sys.exit(77)
    finally:
        end_network()
    unittest.main()
