"""What one client can make the server hold: resident memory, and the gaps of an innocent stream beside it."""

import concurrent.futures
import json
import resource
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import MODEL, NAME, Server

MB = 1 << 20
REQUEST_MEMORY = 128 * MB
# Beside --request-memory: what is free of the budget for each request and each thread that reads them, and what malloc
# has not given back yet.
ALLOWED = REQUEST_MEMORY + 64 * MB
LONGEST_GAP = 5  # seconds; on two busy cores a step of eight sequences takes 10 ms, and one of 512 tokens 200 ms


class Stream(threading.Thread):
    """An innocent client: streams one token after the other and times them."""

    def __init__(self, server):
        super().__init__()
        body = {"prompt": "What", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode())
        self.answer = urllib.request.urlopen(request, timeout=120)
        self.answer.readline()
        self.gaps, self.ended = [0.0], threading.Event()
        self.start()

    def run(self):
        last = time.monotonic()
        for line in self.answer:
            if self.ended.is_set():
                break
            if line.startswith(b"data: {"):
                self.gaps.append(time.monotonic() - last)
                last = time.monotonic()
        self.answer.close()

    def end(self):
        self.ended.set()
        self.join()
        return max(self.gaps)


class MemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--request-memory", "128M", "--max-queued-requests", "200").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.proc = Path(f"/proc/{self.server.program.pid}")
        self.assertEqual(self.chat()[0], 200)

    def use(self, server):
        """Instead of the one that all tests share."""
        self.addCleanup(setattr, self, "server", self.server)
        self.server = server
        self.setUp()

    def bytes_of(self, key):
        for line in (self.proc / "status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no " + key)

    def post(self, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.server.url + path, data), timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def chat(self, **fields):
        return self.post("/v1/chat/completions", {"max_tokens": 20, **fields,
                                                  "messages": [{"role": "user", "content": "Hello"}]})

    def attack(self, count, path, body):
        """The answers' statuses. Checks the peak of the memory, the stream beside it, and that small chats pass."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        (self.proc / "clear_refs").write_text("5")  # VmHWM starts anew
        before = self.bytes_of("VmRSS")
        stream = Stream(self.server)
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            answers = [pool.submit(self.post, path, data) for _ in range(count)]
            chats = 0
            while chats < 2 or not all(answer.done() for answer in answers):
                self.assertIn(self.chat()[0], (200, 429))
                chats += 1
        gap = stream.end()
        grown = self.bytes_of("VmHWM") - before
        print(f"{self.id().split('.')[-1]}: {grown / MB:.0f} MB more at the peak, "
              f"{(self.bytes_of('VmRSS') - before) / MB:.0f} MB after; longest gap {gap:.2f} s", flush=True)
        self.assertLess(grown, ALLOWED)
        self.assertLess(gap, LONGEST_GAP)
        return [answer.result()[0] for answer in answers]

    def test_tokenizing_sixteen_megabytes(self):
        statuses = self.attack(8, "/tokenize", {"prompt": "word (x) " * (15_900_000 // 9)})
        self.assertLessEqual(set(statuses), {413, 503})  # 503: eight of them are more than may arrive at once

    def test_tokenizing_as_much_as_is_allowed(self):
        statuses = self.attack(8, "/tokenize", {"prompt": "(" * 4_100_000, "return_token_strs": True})
        self.assertIn(200, statuses)

    def test_putting_long_texts_together(self):
        self.assertLessEqual(set(self.attack(4, "/detokenize", {"tokens": [300] * 999_000})), {200, 413})

    def test_many_values(self):
        body = b'{"x":[' + b",".join([b'{"a":[]}'] * 330_000) + b"]}"
        self.assertEqual(set(self.attack(8, "/v1/chat/completions", body)), {400})

    def test_choices_of_fifteen_megabytes(self):
        body = {"prompt": "x", "max_tokens": 2, "guided_choice": ["a" * 15_000 + str(i) for i in range(1000)]}
        self.assertLessEqual(set(self.attack(4, "/v1/completions", body)), {400, 503})

    def test_scores_of_many_answers(self):
        body = {"prompt": list(range(300, 700)) * 9, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 128}
        self.assertEqual(set(self.attack(2, "/v1/completions", body)), {400})
        body["n"] = 1
        self.assertEqual(self.attack(1, "/v1/completions", body), [200])

    def test_many_stop_ids(self):
        body = {"prompt": "x", "max_tokens": 20, "n": 128, "stop_token_ids": [i % 500 for i in range(900_000)]}
        self.assertEqual(set(self.attack(2, "/v1/completions", body)), {400})

    def test_answers_that_nobody_reads(self):
        (self.proc / "clear_refs").write_text("5")
        before = self.bytes_of("VmRSS")
        body = json.dumps({"prompt": "(" * 4_000_000, "return_token_strs": True}).encode()
        head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        clients = []
        for _ in range(16):
            clients.append(socket.create_connection(("127.0.0.1", self.server.port)))
            clients[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            clients[-1].sendall(head + body)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and "dropped" not in "".join(self.server.log):
            time.sleep(0.1)
        self.assertIn("reads its answer too slowly", "".join(self.server.log))
        self.assertEqual(self.chat()[0], 200)
        self.assertLess(self.bytes_of("VmHWM") - before, ALLOWED)
        for client in clients:
            client.close()

    def test_bodies_that_never_come(self):
        """Sixteen clients announce 16 MiB each and send nothing, or half of it: others are served beside them."""
        for sent in (b"", b" " * (8 * MB)):
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {16 * MB}\r\n\r\n"
            clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(16)]
            for client in clients:
                client.sendall(head.encode())
                try:
                    client.sendall(sent)
                except OSError:
                    pass  # it had to give way
            self.assertEqual(self.chat()[0], 200)
            self.assertEqual(self.chat(user="x" * 300_000)[0], 200)
            for client in clients:
                client.close()

    def test_chats_that_wait_with_large_tools(self):
        """Their schemas, and the fields that an answer of /v1/responses repeats, are held until the answer is there."""
        schema = {"type": "object", "properties": {"a": {"enum": ["x" * 100 + str(i) for i in range(20_000)]}}}
        body = {"max_tokens": 3000, "ignore_eos": True, "tool_choice": "none", "messages": [{"role": "user", "content": "Hello"}],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}
        self.assertEqual(set(self.attack(60, "/v1/chat/completions", body)) - {200, 429, 503}, set())
        body = {"input": "Hello", "max_output_tokens": 2000, "ignore_eos": True, "metadata": {"a": "x" * 500}, "tool_choice": "none",
                "tools": [{"type": "function", "name": "f", "parameters": schema}]}
        self.assertEqual(set(self.attack(60, "/v1/responses", body)) - {200, 429, 503}, set())

    def test_what_templates_are_rendered_with(self):
        """Of the memory for answers, and given back: many tools and messages, lists in arguments, of which the body
        says nothing, and in variables; a long text."""
        messages = [{"role": "user", "content": "Hello"}]
        tool = {"type": "function", "function": {"name": "f", "description": "d" * 200, "parameters": {
            "type": "object", "properties": {"a": {"type": "string"}}}}}
        lists = "{\"a\":[" + ",".join(["[]"] * 1_500_000) + "]}"
        call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": lists}}]}
        attacks = {"tools": {"messages": messages, "tools": [tool] * 30_000},
                   "messages": {"messages": messages * 110_001},
                   "arguments": {"messages": [*messages, call, {"role": "tool", "tool_call_id": "c", "content": ""}]},
                   "variables": {"messages": messages, "chat_template_kwargs": {"a": [{"a": []}] * 300_000}},
                   "text": {"messages": messages, "tools": [{**tool, "function": {"name": "f", "description": "é " * 1_800_000}}]}}
        with Server("--request-memory", "128M", model=MODEL.parent / "nibble-tiny-qwen3-next") as server:
            self.use(server)
            before = self.bytes_of("VmRSS")
            for what, body in attacks.items():
                with self.subTest(what):
                    self.assertEqual(set(self.attack(3, "/v1/chat/completions", body)) - {400, 429}, set())
                    self.attack(1, "/tokenize", body)
                    self.attack(1, "/v1/messages/count_tokens", body)
            for _ in range(100):  # the answer is there before its request is gone
                if self.bytes_of("VmRSS") - before < 64 * MB:
                    break
                time.sleep(0.1)
            self.assertLess(self.bytes_of("VmRSS") - before, 64 * MB)
            # All of it is free again: a chat that needs half of it is answered.
            self.assertEqual(self.chat(max_tokens=1, chat_template_kwargs={"a": "x" * 6_000_000})[0], 200)

    def test_missing_memory_ends_a_request_and_not_the_server(self):
        bodies = [("/v1/chat/completions", b'{"x":[' + b",".join([b'{"a":[]}'] * 330_000) + b"]}"),
                  ("/tokenize", json.dumps({"prompt": "(" * 4_000_000, "return_token_strs": True}).encode()),
                  ("/v1/completions", json.dumps({"prompt": list(range(300, 700)) * 9, "max_tokens": 1, "echo": True,
                                                  "logprobs": 20}).encode())]
        with Server() as server:
            self.use(server)
            limits = set()
            for path, body in bodies:
                stream = Stream(server)
                for room in (2, 8, 32, 64):
                    resource.prlimit(server.program.pid, resource.RLIMIT_AS, (self.bytes_of("VmSize") + room * MB, resource.RLIM_INFINITY))
                    try:
                        limits.add(self.post(path, body)[0])
                    except OSError:
                        limits.add("closed")
                self.assertLess(stream.end(), LONGEST_GAP)
                resource.prlimit(server.program.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
                self.assertEqual(self.chat()[0], 200)
            self.assertTrue(limits & {500, 503}, limits)


if __name__ == "__main__":
    unittest.main()
