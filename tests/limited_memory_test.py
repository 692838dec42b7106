"""A control group's memory limit is what start-up plans for, and nothing that is served breaks it."""

import concurrent.futures
import json
import os
import subprocess
import unittest
import urllib.request
from pathlib import Path

from serving import NAME, Server

MB = 1 << 20
LIMIT = 900 * MB
RESERVE = 512 * MB  # what start-up leaves of it to everyone else
ROOT = Path("/sys/fs/cgroup")


class Group:
    """A group of version 1 or 2 that this process and what it starts are in; OSError where none can be made."""

    def __init__(self):
        is_v1 = (ROOT / "memory/memory.limit_in_bytes").exists()
        self.parent = ROOT / "memory" if is_v1 else ROOT
        self.path = self.parent / f"nibble-test-{os.getpid()}"
        self.path.mkdir()
        limit, peak = (("memory.limit_in_bytes", "memory.max_usage_in_bytes") if is_v1
                       else ("memory.max", "memory.peak"))
        self.peak = self.path / peak
        try:
            (self.path / limit).write_text(str(LIMIT))
            (self.path / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self.path.rmdir()
            raise

    def end(self):
        (self.parent / "cgroup.procs").write_text(str(os.getpid()))
        self.path.rmdir()


class LimitedMemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cls.group = Group()
        except OSError as error:
            raise unittest.SkipTest(f"no control group can be made here: {error}") from error
        cls.addClassCleanup(cls.group.end)

    def run_nibble(self, *arguments):
        return subprocess.run([os.environ["NIBBLE"], *arguments], capture_output=True, text=True, timeout=120)

    def test_the_limit_is_the_memory(self):
        plan = self.run_nibble("plan", "openai/gpt-oss-20b", "--device", "cpu", "--json")
        memory = json.loads(plan.stdout)["memory"]
        self.assertEqual(memory["total_bytes"], LIMIT)
        self.assertLessEqual(memory["budget_bytes"], LIMIT - RESERVE)
        self.assertFalse(memory["fits"])

    def test_what_does_not_fit_is_refused_before_it_is_loaded(self):
        run = self.run_nibble("bench", "openai/gpt-oss-20b", "--load-format", "dummy", "--device", "cpu")
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("The model does not fit", run.stderr)

    def test_serving_stays_below_it(self):
        with Server("--threads", "2", "--request-memory", "96M") as server:
            def chat(i):
                body = {"model": NAME, "max_tokens": 60, "messages": [{"role": "user", "content": f"Hello {i}"}]}
                request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                                 {"Content-Type": "application/json"})
                return json.load(urllib.request.urlopen(request, timeout=120))["usage"]["completion_tokens"]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                self.assertTrue(all(pool.map(chat, range(24))))
        self.assertLess(int(self.group.peak.read_text()), LIMIT - RESERVE // 2)


if __name__ == "__main__":
    unittest.main()
