"""llama-benchy runs against `nibble serve` and gets every row of its table.

It fetches its book and its tokenizer from the network: here the tokenizer is the model's directory,
and the book is put where llama-benchy caches it.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from serving import MODEL, NAME, Server

BOOK = "https://books.invalid/a-book.txt"
WORDS = ("the of and to in is was for on that by this with as it from at an be are one two sorting city "
         "capital number apple banana river stone light house").split()


class LlamaBenchyTest(unittest.TestCase):
    def run_benchy(self, server, *flags):
        with tempfile.TemporaryDirectory() as home:
            book = Path(home) / ".cache" / "llama-benchy" / (hashlib.md5(BOOK.encode()).hexdigest() + ".txt")
            book.parent.mkdir(parents=True)
            choose = random.Random(1).choice
            book.write_text(" ".join(choose(WORDS) for _ in range(20_000)))
            result = Path(home) / "result.json"
            run = subprocess.run(
                [sys.executable, "-m", "llama_benchy", "--base-url", server.url + "/v1", "--model", NAME,
                 "--tokenizer", str(MODEL), "--book-url", BOOK, "--skip-coherence",  # it asks a sampled model for Paris
                 "--save-result", str(result), "--format", "json",
                 *flags],
                env={**os.environ, "HOME": home, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
                capture_output=True, text=True, timeout=400)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertNotIn("rror", run.stdout + run.stderr)
            return json.loads(result.read_text())["benchmarks"]

    def test_prompt_and_generation(self):
        with Server() as server:
            rows = self.run_benchy(server, "--pp", "128", "--tg", "8", "--depth", "0", "64", "--runs", "2",
                                   "--latency-mode", "generation")
            self.assertEqual([row["context_size"] for row in rows], [0, 64])
            for row in rows:
                for figure in ("pp_throughput", "tg_throughput", "ttfr", "e2e_ttft"):
                    self.assertEqual(len(row[figure]["values"]), 2, (figure, row))  # no run was dropped
                    self.assertGreater(row[figure]["mean"], 0)

    def test_concurrency(self):
        with Server() as server:
            rows = self.run_benchy(server, "--pp", "64", "--tg", "8", "--runs", "1", "--concurrency", "1", "4")
            self.assertEqual([row["concurrency"] for row in rows], [1, 4])
            self.assertEqual(len(rows[1]["tg_req_throughput"]["values"]), 4)


if __name__ == "__main__":
    unittest.main()
