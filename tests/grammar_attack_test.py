"""What one client's grammar does to the others: an innocent stream goes on beside patterns whose masks take seconds
and schemas whose compilation never ends, memory stays within what is stated, and SIGTERM ends it all. No clock judges
it: beside each attack the tokens of the innocent are counted, and those of the same stream from a server that nobody
attacks, on the same machine: while the innocent waits for one token, that one may not have got far."""

import concurrent.futures
import contextlib
import json
import random
import signal
import string
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import NAME, Server

# Minutes for xgrammar, in 9 KB.
ENDLESS = {"type": "object", "minProperties": 150, "additionalProperties": False,
           "properties": {f"property_number_{i}": {"type": "integer"} for i in range(300)}}
# Masks of 2.3 s and 6.1 s, for which the engine must not wait.
SLOW_MASKS = ["(.{0,99}){0,99}", ".{0,9}" * 600]
ATTACK_TOKENS = 40
MOST_WAITED = 1 / 3  # of what another server makes meanwhile, how much it makes while the innocent waits for one token
WATCHDOG_S = 120
MAX_BYTES = 1 << 30  # of all grammars together
MAX_GROWTH = 64 << 20  # of the server's own process


def distinct_schema(seed):
    """14 MB once it is compiled."""
    letters = random.Random(seed)

    def word(length):
        return "".join(letters.choice(string.ascii_lowercase) for _ in range(length))

    return {"type": "object", "properties": {word(20): {"type": "string", "enum": [word(12) for _ in range(8)]} for _ in range(60)}}


def children(pid):
    """Of the process, and of its children."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += (task / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended
    for child in found:
        yield child
        yield from children(child)


def private_bytes(pid):
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))


def status_bytes(pid, name):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no " + name)


class Stream:
    """An innocent client, whose tokens are counted; `other()`, how far another server has got, is asked at each."""

    def __init__(self, server, other=lambda: 0):
        body = {"model": NAME, "prompt": "What", "max_tokens": 3900, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        self.answer = urllib.request.urlopen(request, timeout=WATCHDOG_S)
        self.tokens, self.stops = 0, False
        self.other, self.most_waited, self.last = other, 0, other()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.answer:
            if self.stops:
                break
            if line.startswith(b"data: {"):
                self.tokens += 1
                self.most_waited, self.last = self.waited(), self.other()
        self.answer.close()

    def waited(self):
        """How far the other server has got while this one's client waited longest for a token, the next one's wait included."""
        return max(self.most_waited, self.other() - self.last)


class Innocent:
    """Streams without end, begun again where one ends."""

    def __init__(self, server, other=lambda: 0):
        self.server, self.other = server, other
        self.tokens, self.most_waited, self.ends = 0, 0, False
        self.flows = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ends:
            stream, counted = Stream(self.server, self.other), 0
            while stream.thread.is_alive() and not self.ends:
                if stream.tokens > 0:
                    self.flows.set()
                self.tokens += stream.tokens - counted
                counted = stream.tokens
                self.most_waited = max(self.most_waited, stream.waited())
                time.sleep(0.02)
            stream.stops = True
            stream.thread.join()

    def close(self):
        self.ends = True
        self.thread.join()


class GrammarAttackTest(unittest.TestCase):
    def ask(self, server, path="/v1/completions", **fields):
        body = {"model": NAME, "max_tokens": ATTACK_TOKENS, "temperature": 0, **fields}
        if "messages" not in body:
            body["prompt"] = "What is the capital of France?"
        request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=WATCHDOG_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def beside(self, server, attack, other=lambda: 0):
        """Tokens of an innocent client while the attack runs, and those of `other` while it waited longest for one."""
        innocent = Innocent(server, other)
        try:
            self.assertTrue(innocent.flows.wait(WATCHDOG_S))
            before = innocent.tokens
            attack()
            time.sleep(0.1)  # it has seen what waited until the end
            return innocent.tokens - before, innocent.most_waited
        finally:
            innocent.close()

    def test_masks_that_take_seconds_cost_their_own_request(self):
        with Server() as server, Server() as calm, contextlib.closing(Innocent(calm)) as other:
            for pattern in SLOW_MASKS:
                answers = []

                def attack(pattern=pattern, answers=answers):
                    with concurrent.futures.ThreadPoolExecutor() as pool:
                        for _ in range(2):
                            answers.append(pool.submit(self.ask, server, guided_regex=pattern))

                self.assertTrue(other.flows.wait(WATCHDOG_S))
                before = other.tokens
                tokens, waited = self.beside(server, attack, lambda: other.tokens)
                self.assertGreater(tokens, 2 * ATTACK_TOKENS, pattern[:20])
                self.assertLess(waited, MOST_WAITED * (other.tokens - before), pattern[:20])
                for answer in answers:
                    status, body = answer.result()
                    if status != 200:
                        self.assertEqual(status, 400, body)
                        self.assertIn("guided_regex" if body["error"]["param"] else "for one token", json.dumps(body))

    def test_compilations_that_never_end_leave_the_others_theirs(self):
        with Server() as server:
            before = server.memory_bytes()
            answers = []

            def attack():
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    for _ in range(3):
                        answers.append(pool.submit(self.ask, server, guided_json=ENDLESS))
                    while len(list(children(server.program.pid))) < 2 and not any(answer.done() for answer in answers):
                        time.sleep(0.05)
                    status, body = self.ask(server, guided_json={"type": "object"})  # 400 where it had to wait for them
                    self.assertEqual(status, 200, body)

            self.assertGreater(self.beside(server, attack)[0], ATTACK_TOKENS)
            for answer in answers:
                status, body = answer.result()
                self.assertEqual((status, body["error"]["param"]), (400, "guided_json"), body)
            status, body = self.ask(server, guided_json={"type": "object"})
            self.assertEqual(status, 200, body)
            self.assertLess(status_bytes(server.program.pid, "VmHWM") - before, MAX_GROWTH)

    def test_what_is_kept_stays_within_its_bounds_and_is_given_back(self):
        with Server() as server:
            self.ask(server, guided_json={"type": "object"})
            before = server.memory_bytes()

            most = 0
            for seed in range(12):
                status, body = self.ask(server, guided_json=distinct_schema(seed), max_tokens=2)
                self.assertIn(status, (200, 400), body)
                most = max(most, sum(map(private_bytes, children(server.program.pid))))
            self.assertLess(most, MAX_BYTES)
            self.assertLess(status_bytes(server.program.pid, "VmHWM") - before, MAX_GROWTH)

    def test_sigterm_ends_it_while_grammars_are_compiled(self):
        server = Server("--shutdown-timeout", "1").__enter__()
        self.addCleanup(server.program.kill)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            def give_up():
                try:
                    self.ask(server, guided_json=ENDLESS)
                except OSError:
                    pass

            for _ in range(2):
                pool.submit(give_up)
            pids = []
            for _ in range(80):  # a compile has five seconds
                pids = list(children(server.program.pid))
                if len(pids) > 1:
                    break
                time.sleep(0.05)
            self.assertGreater(len(pids), 1)
            server.program.send_signal(signal.SIGTERM)
            self.assertEqual(server.program.wait(timeout=WATCHDOG_S), 0)
        server.reader.join()
        server.program.stderr.close()
        for _ in range(WATCHDOG_S * 20):
            left = [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
            if not left:
                break
            time.sleep(0.05)
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
