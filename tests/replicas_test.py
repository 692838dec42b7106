"""Two servers behind HAProxy, with the configuration that the project ships: restarts fail no request, and sessions stay
where they are. Without HAProxy it is skipped (status 77)."""

import concurrent.futures
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import MODEL, SOURCE, Server

HAPROXY = os.environ.get("NIBBLE_HAPROXY") or shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Nibble(Server):
    def __init__(self, port):
        super().__init__("--threads", "1", "--shutdown-timeout", "60")
        self.command[self.command.index("--port") + 1] = str(port)

    def requests(self):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            found = re.findall(r"^vllm:request_success_total\{[^}]*\} (\d+)", answer.read().decode(), re.M)
        return sum(map(int, found))


class ReplicasTest(unittest.TestCase):
    def setUp(self):
        self.ports = [free_port(), free_port()]
        self.nibbles = [Nibble(port).__enter__() for port in self.ports]
        self.addCleanup(lambda: [nibble.__exit__() for nibble in self.nibbles])
        config = (SOURCE / "packaging/haproxy/haproxy.cfg").read_text()
        self.port = free_port()
        for shipped, here in zip((8000, 8001, 8002), (self.port, *self.ports)):
            self.assertIn(f"127.0.0.1:{shipped}", config)
            config = config.replace(f"127.0.0.1:{shipped}", f"127.0.0.1:{here}")
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        (folder / "haproxy.cfg").write_text(config)
        self.gateway = subprocess.Popen([HAPROXY, "-db", "-f", folder / "haproxy.cfg"])
        self.addCleanup(lambda: (self.gateway.terminate(), self.gateway.wait()))
        for _ in range(100):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.fail("HAProxy did not start")

    def ask(self, text="What is the capital of France?", **headers):
        body = {"model": MODEL.name, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 48}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    def grown(self, before, by):
        """Requests of each nibble since `before`; an answer may be here before it is counted there."""
        for _ in range(100):
            grown = [nibble.requests() - n for nibble, n in zip(self.nibbles, before)]
            if sum(grown) >= by:
                break
            time.sleep(0.02)
        self.assertEqual(sum(grown), by)
        return grown

    def test_restarts_fail_no_request(self):
        want, over, failed, asked = self.ask(), threading.Event(), [], [0]

        def go_on():
            while not over.is_set():
                try:
                    asked[0] += 1
                    if (said := self.ask()) != want:
                        failed.append(said)
                except (urllib.error.URLError, ConnectionError, json.JSONDecodeError) as error:
                    failed.append(str(error))

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(go_on)
            for i in (0, 1):
                time.sleep(1)
                self.nibbles[i].__exit__()  # SIGTERM; status 0
                time.sleep(0.5)
                self.nibbles[i] = Nibble(self.ports[i]).__enter__()
                time.sleep(1)  # until HAProxy has seen that it is back
            over.set()
        self.assertEqual(failed, [])
        self.assertGreater(asked[0], 8)
        print(asked[0], "requests through two restarts")

    def test_sessions_stay_where_they_are(self):
        stayed = []
        for session in ("a", "b", "c", "d"):
            before = [nibble.requests() for nibble in self.nibbles]
            for i in range(4):
                self.ask(f"Count to {i + 3}.", **{"X-Session-Id": session})
            stayed.append(max(self.grown(before, 4)))
        # An answer counts as under way until its connection is free: the next request may find its nibble too busy.
        self.assertGreaterEqual(sum(stayed), 13)  # of 16, where 8 is what chance gives

    def test_load_is_shared(self):
        before = [nibble.requests() for nibble in self.nibbles]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda i: self.ask(f"Count to {i + 3}."), range(12)))
        self.assertGreaterEqual(min(self.grown(before, 12)), 3)


if __name__ == "__main__":
    if HAPROXY is None:
        print("skipped: no haproxy here")
        sys.exit(77)
    unittest.main()
