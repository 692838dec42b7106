"""What goes wrong around a server: nobody reads its log, no files are left, clients flood it. It stays up."""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import select
import shutil
import socket
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from unittest import mock

from serving import MODEL, NAME, WEATHER, Server

# Its schema is left out of the grammar, with a line in the log for each request.
ODD_TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"x": {"type": "string", "pattern": "(a"}}}}}


class FaultsTest(unittest.TestCase):
    def ask(self, server, text="What is the capital of France?", **fields):
        body = {"model": NAME, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def start(self, *flags):
        server = Server(*flags)
        with mock.patch("threading.Thread"):  # nobody reads what it logs from now on
            server.__enter__()
        self.addCleanup(server.program.kill)
        return server

    def test_nobody_reads_the_log(self):
        server = self.start()
        size = fcntl.fcntl(server.program.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(size // 64):  # bytes of a line, at least
            self.ask(server, tools=[ODD_TOOL], max_tokens=1)
        self.assertIn("Paris", self.ask(server)["choices"][0]["message"]["content"])
        server.program.terminate()
        self.assertEqual(server.program.wait(timeout=60), 0)
        server.program.stderr.close()

    def test_the_log_is_closed(self):
        server = self.start()
        server.program.stderr.close()
        self.ask(server, tools=[ODD_TOOL], max_tokens=1)
        self.assertIn("Paris", self.ask(server)["choices"][0]["message"]["content"])
        server.program.terminate()
        self.assertEqual(server.program.wait(timeout=60), 0)

    def test_no_files_are_left(self):
        server = Server()
        server.command = ["/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *server.command]
        server.__enter__()
        self.addCleanup(server.program.kill)
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        time.sleep(0.5)
        self.assertLessEqual(server.open_files(), 64)
        for client in clients:
            client.close()
        self.assertIn("Paris", self.ask(server)["choices"][0]["message"]["content"])
        server.__exit__()
        self.assertIn("cannot accept a connection", "".join(server.log))

    def test_prompts_stay_out_of_the_log(self):
        with mock.patch.dict(os.environ, {"NIBBLE_LOG": "debug"}), Server() as server:
            self.ask(server, "zebra-4711\n12:00:00 error forged", tools=[WEATHER, ODD_TOOL], max_tokens=5)
            for fields in ({"temperature": "zebra-4711"}, {"tools": [{"type": "zebra-4711"}]}):
                with self.assertRaises(urllib.error.HTTPError):
                    self.ask(server, **fields)
            request = urllib.request.Request(server.url + "/zebra-4711", headers={"X-Request-Id": "zebra-4711"})
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(request)
        self.assertNotIn("zebra", "".join(server.log))
        self.assertNotIn("forged", "".join(server.log))

    def test_statistics_stay_out_of_the_log_where_nobody_wants_them(self):
        with mock.patch.dict(os.environ, {"NIBBLE_LOG_STATS_INTERVAL": "0.1"}), \
             Server() as talks, Server("--disable-log-stats") as is_quiet:
            def says_something(server):
                return any("tokens/s, generation" in line for line in server.log)

            for _ in range(200):  # some 50 ms each
                for server in (is_quiet, talks):
                    self.ask(server, max_tokens=100, ignore_eos=True)
                if says_something(talks):
                    break
        self.assertTrue(says_something(talks))
        self.assertFalse(says_something(is_quiet))

    def test_it_connects_to_nobody(self):
        """Every socket of the program is its own: it listens, or has accepted."""
        with Server() as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(self.ask, server, max_tokens=300, ignore_eos=True) for _ in range(8)]
            sockets = 0
            while not all(answer.done() for answer in answers):
                own = {link[len("socket:["):-1] for link in self.links(server) if link.startswith("socket:[")}
                for line in Path(f"/proc/{server.program.pid}/net/tcp").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[9] in own:
                        self.assertEqual(int(fields[1].split(":")[1], 16), server.port)
                        sockets += 1
            self.assertGreater(sockets, 1)

    def links(self, server):
        for fd in Path(f"/proc/{server.program.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                yield os.readlink(fd)

    def test_damaged_weights_are_no_fault_of_the_callers(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(shutil.copytree(MODEL, Path(folder) / NAME))
            weights = bytearray((model / "model.safetensors").read_bytes())
            size = int.from_bytes(weights[:8], "little")
            [begin, _] = json.loads(weights[8:8 + size])["model.norm.weight"]["data_offsets"]
            weights[8 + size + begin:8 + size + begin + 2] = b"\xc0\x7f"  # NaN in bf16
            (model / "model.safetensors").write_bytes(weights)
            with Server(model=model) as server:
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    self.ask(server)
                with caught.exception as error:
                    self.assertEqual((error.code, json.load(error)["error"]["type"]), (500, "server_error"))

    def test_a_flood_of_long_requests(self):
        """A thousand at once of the whole context: a place, or 429 and when to come again; nothing else."""
        with Server("--max-queued-requests", "24") as server:
            body = json.dumps({"prompt": "word " * 2000, "max_tokens": 2000, "ignore_eos": True}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            before = server.memory_bytes()
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
            for client in clients:
                client.sendall(head + body)
            answers, waiting = [], list(clients)
            while len(answers) < 1000 - 32:  # 8 run and 24 wait
                ready, _, _ = select.select(waiting, [], [], 60)
                self.assertTrue(ready, f"{len(answers)} were answered")
                answers += [client.recv(4096) for client in ready]
                waiting = [client for client in waiting if client not in ready]
            for answer in answers:
                self.assertRegex(answer, rb"^HTTP/1.1 (429|503) ")
                self.assertIn(b"Retry-After: ", answer)
            self.assertLess(server.memory_bytes() - before, 200 << 20)
            for client in clients:
                client.close()
            while server.get("/load")["server_load"] > 0:  # until it knows that they have gone
                time.sleep(0.05)
            self.assertIn("Paris", self.ask(server)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    unittest.main()
