"""llama-benchy runs against `nibble serve` and gets every row of its table.

It fetches its book and its tokenizer from the network: here the tokenizer is the model's directory,
and the book is put where llama-benchy caches it. The book is a question that the small
model is sure to answer in words, at temperature 0 and to the length asked for: llama-benchy drops a
run that shows no text, as a function call or an early end does.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from serving import MODEL, NAME, Server

BOOK = "https://books.invalid/a-book.txt"
QUESTION = "Can you write a poem about the sea? "


class LlamaBenchyTest(unittest.TestCase):
    def run_benchy(self, server, *flags):
        with tempfile.TemporaryDirectory() as home:
            book = Path(home) / ".cache" / "llama-benchy" / (hashlib.md5(BOOK.encode()).hexdigest() + ".txt")
            book.parent.mkdir(parents=True)
            book.write_text(QUESTION * 3000)
            result = Path(home) / "result.json"
            run = subprocess.run(
                [sys.executable, "-m", "llama_benchy", "--base-url", server.url + "/v1", "--model", NAME,
                 "--tokenizer", str(MODEL), "--book-url", BOOK, "--skip-coherence",  # it asks a sampled model for Paris
                 "--extra-body", "temperature=0", "--exact-tg", "--save-result", str(result), "--format", "json",
                 *flags],
                env={**os.environ, "HOME": home, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
                capture_output=True, text=True, timeout=400)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertNotIn("rror", run.stdout + run.stderr)
            return json.loads(result.read_text())["benchmarks"]

    def test_prompt_and_generation(self):
        with Server() as server:
            rows = self.run_benchy(server, "--pp", "128", "--tg", "32", "--depth", "0", "64", "--runs", "2",
                                   "--latency-mode", "none")  # else a busy machine may take more off than there is
            self.assertEqual([row["context_size"] for row in rows], [0, 64])
            for row in rows:
                for figure in ("pp_throughput", "tg_throughput", "ttfr", "e2e_ttft"):
                    self.assertEqual(len(row[figure]["values"]), 2, (figure, row))  # no run was dropped
                    self.assertGreater(row[figure]["mean"], 0)

    def test_concurrency(self):
        with Server() as server:
            rows = self.run_benchy(server, "--pp", "64", "--tg", "32", "--runs", "1", "--concurrency", "1", "4",
                                   "--latency-mode", "generation")
            self.assertEqual([row["concurrency"] for row in rows], [1, 4])
            self.assertEqual(len(rows[1]["tg_req_throughput"]["values"]), 4)


if __name__ == "__main__":
    unittest.main()
