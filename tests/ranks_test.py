"""Servers whose steps several ranks compute together: the text of one, and a quick end where a rank is lost."""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import MODEL, Server

# As one rank computes: int8 activations round differences of sums away or make them larger.
RANKS = ("--threads", "1", "--activations", "float", "--kv-cache-dtype", "f32")
ENDLESS = {"prompt": "What", "max_tokens": 3900, "ignore_eos": True, "stream": True}
QUESTIONS = ["What is the capital of France?", "Write a haiku about the sea.", "Count from 1 to 20.",
             "What is the weather in Oslo?", "Say hello in three languages."]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def post(server, path, body, timeout=120):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)


def chat(server, text, **fields):
    with post(server, "/v1/chat/completions",
              {"model": server.name, "messages": [{"role": "user", "content": text}], "max_tokens": 64} | fields) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def answers(server):
    """Greedy, drawn and under a grammar, several at a time."""
    jobs = [dict(text=text, temperature=0) for text in QUESTIONS]
    jobs += [dict(text=text, temperature=0.8, seed=i) for i, text in enumerate(QUESTIONS)]
    jobs += [dict(text="Invent a person.", temperature=1, seed=seed, response_format={
        "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}) for seed in (1, 2)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda job: chat(server, **job), jobs))


def ranks_of(program):
    """The processes that `program` started as ranks, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int(re.search(r"^PPid:\s+(\d+)", (entry / "status").read_text(), re.M)[1])
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, TypeError):
            continue
        for variable in variables if parent == program.pid else []:
            if variable.startswith(b"NIBBLE_TP_RANK="):
                found[int(variable.split(b"=")[1])] = int(entry.name)
    return found


def is_running(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class RanksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*RANKS) as server:
            cls.want = answers(server)

    def start(self, *flags):
        server = Server(*RANKS, *flags)
        server.__enter__()
        self.addCleanup(self.clean, server)
        return server

    def clean(self, server):
        server.program.kill()
        server.program.wait()
        server.reader.join(10)
        server.program.stderr.close()

    def stream(self, server):
        answer = post(server, "/v1/completions", ENDLESS)
        self.assertTrue(answer.readline().startswith(b"data: {"))
        return answer

    def assert_ended(self, server, pids, why):
        """Status 1, the reason in the log, and nothing left behind."""
        self.assertEqual(server.program.wait(timeout=30), 1)
        server.reader.join(30)
        self.assertRegex("".join(server.log), why)
        for _ in range(100):
            if not any(map(is_running, pids)):
                return
            time.sleep(0.05)
        self.fail("a rank is left behind")

    # Sums of parts are rounded differently from the sum of all, and the tasks' answers are certain enough.
    def test_two_ranks_of_a_model_with_states(self):
        model = MODEL.parent / "nibble-tiny-qwen3-next"
        ngrams = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":2,"prompt_lookup_max":4}'
        with Server(*RANKS, model=model) as server:
            want = answers(server)
        for flags in ((), ("--max-num-batched-tokens", "48", "--speculative-config", ngrams),
                      ("--speculative-config", '{"method":"mtp","num_speculative_tokens":3}')):
            with self.subTest(flags), Server(*RANKS, "-tp", "2", *flags, model=model) as server:
                self.assertEqual(answers(server), want)
                self.assertEqual(answers(server), want)  # out of the prefix cache

    # What goes from rank to rank of a row of logits: what is heaviest and sums, however far down a draw reaches.
    def test_what_logits_cost_is_counted(self):
        def counts(server):
            with urllib.request.urlopen(server.url + "/metrics") as page:
                found = dict(re.findall(r"^(nibble_rank_\w+) (\S+)$", page.read().decode(), re.M))
            return [float(found[f"nibble_rank_{name}_total"]) for name in ("rows", "whole_rows", "logit_bytes")]
        with Server(*RANKS, "-tp", "2") as server:
            answers(server)
            rows, whole, sent = counts(server)
            print(f"{sent / rows:.0f} bytes a row of logits, {whole:.0f} of {rows:.0f} whole")
            for wide in (dict(top_k=50), dict(top_p=0.99), dict(top_k=1000, top_p=0.9)):
                chat(server, QUESTIONS[0], temperature=2, seed=1, max_tokens=8, **wide)
            more = counts(server)
            print(f"{(more[2] - sent) / (more[0] - rows):.0f} bytes a row that draws from far down")
            self.assertEqual((whole, more[1]), (0, 0))

    def test_two_ranks_say_what_one_says(self):
        for flags in (("--tensor-parallel-size", "2"),
                      ("-tp", "2", "--max-num-batched-tokens", "48", "--speculative-config",
                       '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":2,"prompt_lookup_max":4}')):
            with Server(*RANKS, *flags) as server:
                self.assertEqual(answers(server), self.want)
                self.assertEqual(answers(server), self.want)  # out of the prefix cache
                pids = ranks_of(server.program)
                self.assertEqual(list(pids), [1])
            self.assertFalse(is_running(pids[1]))

    def test_a_killed_rank_ends_every_request(self):
        server = self.start("--tensor-parallel-size", "2")
        pids = ranks_of(server.program)
        streams = [self.stream(server) for _ in range(3)]
        os.kill(pids[1], signal.SIGKILL)
        for stream in streams:
            events = [line for line in stream.read().decode().splitlines() if line]
            self.assertRegex(events[-2], "rank 1")
        self.assert_ended(server, pids.values(), "rank 1")

    def test_a_stopped_rank_ends_every_request(self):
        server = self.start("--tensor-parallel-size", "3")
        pids = ranks_of(server.program)
        stream = self.stream(server)
        os.kill(pids[2], signal.SIGSTOP)
        self.assertRegex(stream.read().decode(), "rank 2 has not been heard of for 2")
        self.assert_ended(server, pids.values(), "rank 2 has not been heard of")

    def test_a_rank_is_missed_without_requests(self):
        server = self.start("--tensor-parallel-size", "2")
        pids = ranks_of(server.program)
        os.kill(pids[1], signal.SIGKILL)
        self.assert_ended(server, pids.values(), "rank 1 is gone")

    def test_ranks_end_with_rank_0(self):
        server = self.start("--tensor-parallel-size", "2")
        pids = ranks_of(server.program)
        os.kill(pids[1], signal.SIGTERM)  # what ends a service reaches all: rank 0 drains first
        self.assertEqual(chat(server, QUESTIONS[0], temperature=0), self.want[0])
        server.program.kill()
        server.program.wait()
        server.reader.join(30)  # the log ends when its last writer does
        self.assertFalse(is_running(pids[1]))

    def test_bench(self):
        drafts = {"method": "eagle3", "model": f"{MODEL}-eagle3", "num_speculative_tokens": 3, "adaptive": False}
        command = [os.environ["NIBBLE"], "bench", str(MODEL), "--device", "cpu", "--threads", "1", "-tp", "2", "--json",
                   "-r", "1", "-n", "16", "--test", "tg 8", "--test", "pp64", "--speculative-config", json.dumps(drafts)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
        self.assertEqual([row["test"] for row in found["rows"]], ["tg 8", "pp64"])
        self.assertTrue(all(row["value"] > 0 for row in found["rows"]))
        self.assertGreater(found["rows"][0]["mean_acceptance_length"], 1)

    # As a supervisor does with Restart=on-failure. NIBBLE_RANK_ROUNDS=100: by hand.
    def test_a_restart_serves_again(self):
        rounds = int(os.environ.get("NIBBLE_RANK_ROUNDS", "3"))
        for i in range(rounds):
            server = Server(*RANKS, "--tensor-parallel-size", str(2 + i % 2))
            server.__enter__()
            try:
                pids = ranks_of(server.program)
                self.assertEqual(chat(server, QUESTIONS[0], temperature=0), self.want[0])
                stream = self.stream(server)
                time.sleep(0.01 * (i % 7))
                os.kill(pids[1], [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV][i % 3])
                self.assertRegex(stream.read().decode(), "rank 1")
                self.assert_ended(server, pids.values(), "rank 1")
            finally:
                self.clean(server)
            if i % 10 == 9:
                print(f"{i + 1} rounds", flush=True)

    # ---- two nodes

    def node(self, rank, key, program=None, port=29511, flags=()):
        command = [program or os.environ["NIBBLE"], "serve", str(MODEL), "--port", "0", "--device", "cpu",
                   "--max-model-len", "4096", "--max-num-seqs", "8", *RANKS, "--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank",
                   str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port), *flags]
        if key:
            command += ["--tensor-parallel-key-file", str(key)]
        node = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (node.kill(), node.wait(), node.stderr.close()))
        return node

    def key(self, text):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        (folder / "key").write_text(text + "\n")
        return folder / "key"

    def test_two_nodes(self):
        port, key = 29500 + os.getpid() % 400, self.key("f" * 32)
        second = self.node(1, key, port=port)
        server = Server(*RANKS, "--tensor-parallel-size", "2", "--nnodes", "2", "--master-port", str(port),
                        "--tensor-parallel-key-file", str(key))
        with server:
            self.assertEqual(chat(server, QUESTIONS[0], temperature=0), self.want[0])
            self.assertRegex("".join(server.log), r"2 over TCP at 127.0.0.1; a sum .* us, of 4 MB .* GB/s\); a token of .* ms")
        self.assertEqual(second.wait(timeout=30), 0)

    def test_nodes_that_do_not_fit(self):
        port, key = 29500 + (os.getpid() + 200) % 400, self.key("f" * 32)
        other = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, other)
        bytes_of = Path(os.environ["NIBBLE"]).read_bytes()
        commit = subprocess.run([os.environ["NIBBLE"], "--version"], capture_output=True, text=True).stdout
        commit = re.search(r"commit ([0-9a-f]{12}|unknown)", commit)[1].encode()
        # Compilers keep texts in pieces, of eight characters at least.
        self.assertIn(commit[:7], bytes_of)
        (other / "nibble").write_bytes(bytes_of.replace(commit[:7], commit[:6] + b"?"))
        (other / "nibble").chmod(0o755)
        first = self.node(0, key, port=port)
        for why, node in (("does not know the key", dict(key=self.key("e" * 32))),
                          ("its build is another", dict(key=key, program=str(other / "nibble"))),
                          ("its set of flags is another", dict(key=key, flags=("--no-enable-prefix-caching",)))):
            second = self.node(1, node.pop("key"), port=port, **node)
            self.assertEqual(second.wait(timeout=60), 1)
            self.assertIn(why, second.stderr.read())
        self.assertIsNone(first.poll())
        no_key = self.node(1, None, port=port)
        self.assertEqual(no_key.wait(timeout=60), 2)
        self.assertIn("--tensor-parallel-key-file", no_key.stderr.read())


if __name__ == "__main__":
    unittest.main()
