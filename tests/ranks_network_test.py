"""Two nodes in network namespaces of their own: a cable is pulled, packets are dropped, the link is slow and loses some.

Needs root, `ip` and `iptables`; where they are missing it is skipped (status 77).
"""

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
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


class Link(threading.Thread):
    """A device in each namespace; packets of one reach the other after `delay` seconds, but for a part that is lost."""

    def __init__(self):
        super().__init__()
        self.delay, self.loss, self.num_passed, self.num_lost, self.ends = 0.0, 0.0, 0, 0, False
        self.devices = [self.make(device, name) for device, name in zip(("link-a", "link-b"), NAMES)]

    def make(self, device, name):
        IFF_TUN, IFF_NO_PI, TUNSETIFF = 1, 0x1000, 0x400454CA
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        run("ip", "link", "set", device, "netns", name)
        return file

    def run(self):
        to = dict(zip(self.devices, reversed(self.devices)))
        under_way, numbers, chance = [], itertools.count(), random.Random(1)
        while not self.ends:
            wait = under_way[0][0] - time.monotonic() if under_way else 0.1
            for device in select.select(self.devices, [], [], max(0, wait))[0]:
                packet = os.read(device, 1 << 16)
                lost = chance.random() < self.loss
                self.num_lost, self.num_passed = self.num_lost + lost, self.num_passed + (not lost)
                if not lost:
                    heapq.heappush(under_way, (time.monotonic() + self.delay, next(numbers), to[device], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(under_way)
                try:
                    os.write(device, packet)
                except OSError:
                    pass  # that one is not up yet

    def end(self):
        self.ends = True
        self.join()
        for device in self.devices:
            os.close(device)


def make_network(make_link=None):
    """What `make_link` makes once the namespaces are there: link-a in one, link-b in the other."""
    for name in NAMES:
        run("ip", "netns", "add", name)
    if make_link:
        made = make_link()
    else:
        made = run("ip", "link", "add", "link-a", "netns", NAMES[0], "type", "veth", "peer", "name", "link-b", "netns", NAMES[1])
    for side, device in enumerate(("link-a", "link-b")):
        run("ip", "-n", NAMES[side], "addr", "add", ADDRESSES[side] + "/24", "dev", device)
        run("ip", "-n", NAMES[side], "link", "set", device, "up")
        run("ip", "-n", NAMES[side], "link", "set", "lo", "up")
    run(*inside(0, "iptables", "-L"))
    return made


def end_network():
    for name in NAMES:
        run("ip", "netns", "del", name, check=False)


class TwoNodes(unittest.TestCase):
    make_link = None

    def setUp(self):
        self.addCleanup(end_network)
        self.link = make_network(self.make_link)
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


class NetworkTest(TwoNodes):
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


class SlowLinkTest(TwoNodes):
    def make_link(self):
        if not os.path.exists("/dev/net/tun"):
            self.skipTest("this kernel has no TUN devices")
        link = Link()
        link.start()
        self.addCleanup(link.end)  # the nodes have ended then
        return link

    def test_a_slow_link(self):
        asked = dict(max_tokens=32)
        want = self.ask(**asked).communicate(timeout=60)[0]
        before = self.link.num_passed
        self.link.delay, self.link.loss = 0.002, 0.01
        self.assertEqual(self.ask(**asked).communicate(timeout=120)[0], want)
        print(f"{self.link.num_passed - before} packets of 2 ms each, {self.link.num_lost} lost")
        self.assertGreater(self.link.num_lost, 0)
        self.assertIsNone(self.nodes[0].poll())


if __name__ == "__main__":
    try:
        make_network()
    except (OSError, subprocess.CalledProcessError) as reason:
        print("skipped: no network namespaces here:", getattr(reason, "stderr", reason))
        sys.exit(77)
    finally:
        end_network()
    unittest.main()
