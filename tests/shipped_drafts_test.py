"""Drafts of the head that ships with a model change nothing of what it says, whatever their number, and come true on its
tasks: an Eagle3 head of gpt-oss, the MTP layer of Qwen3-Next."""

import json
import os
import subprocess
import sys
import unittest
import urllib.request

from serving import MODEL, NAME, SOURCE, Server

sys.path.insert(0, str(SOURCE / "tools" / "train_tiny"))
import evaluate  # noqa: E402

ITEMS = SOURCE / "tests" / "data" / "tiny_gpt_oss_items.jsonl"
MOST = 7
DRAFTER = {"num_speculative_tokens": MOST, "adaptive": False}
DRAFTER |= {"method": "eagle3", "model": f"{MODEL}-eagle3"} if NAME == "nibble-tiny-gpt-oss" else {"method": "mtp"}
# Of first drafts on held-out items, at temperature 0.
LEAST_ACCEPTED = 0.8
TASKS = ("arithmetic", "facts", "json", "call")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class ShippedDraftsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--exact", "--speculative-config", json.dumps(DRAFTER)))
        items = evaluate.load_items(ITEMS)
        cls.items = [item for task in TASKS for item in [item for item in items if item.task == task][:2]]

    def said(self, messages, tools, drafts, **sampling):
        body = {"messages": messages, "tools": tools, "max_tokens": 120, "num_speculative_tokens": drafts, "logprobs": True, **sampling}
        choice = post(self.server.url + "/v1/chat/completions", body)["choices"][0]
        for call in choice["message"].get("tool_calls") or []:
            del call["id"]
        return choice

    def counts(self):
        """Of drafts in all, and of first ones that came true."""
        with urllib.request.urlopen(self.server.url + "/metrics") as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("vllm:spec_decode_num_")]
        count = lambda name: next(float(line.split()[-1]) for line in lines if name in line)  # noqa: E731
        return count("num_drafts_total"), count('position="0"')

    def test_same_answers_whatever_the_number_of_drafts(self):
        for item in self.items:
            for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "seed": 4}):
                plain = self.said(item.messages, item.tools, 0, **sampling)
                for drafts in (1, 3, MOST):
                    with self.subTest(item=item.messages[-1]["content"], drafts=drafts, **sampling):
                        self.assertEqual(self.said(item.messages, item.tools, drafts, **sampling), plain)

    def test_same_answers_to_a_second_question(self):
        for first, second in zip(self.items, self.items[1:]):
            messages = list(first.messages)
            for drafts in (MOST, 2):  # the first answer's pages are of a sequence that had drafts
                answer = self.said(messages, first.tools, drafts, temperature=0)["message"]
                messages += [{"role": "assistant", "content": answer["content"] or ""}, second.messages[-1]]
            plain = self.said(messages, first.tools, 0, temperature=0)
            self.assertEqual(self.said(messages, first.tools, 3, temperature=0), plain)

    def test_start_up_says_what_the_drafter_takes(self):
        said = [line for line in self.server.log if line.startswith("drafts by ")]
        self.assertEqual(len(said), 1, self.server.log)
        self.assertRegex(said[0], r": [0-9.]+ [KM]iB of weights, .*[0-9]+ bytes a token of KV cache; a draft reads [0-9.]+% of what a token")

    def test_bench_says_how_many_come_true(self):
        run = subprocess.run([os.environ["NIBBLE"], "bench", str(MODEL), "--device", "cpu", "--json", "-p", "0", "-n", "16", "-r", "1",
                              "--speculative-config", json.dumps(DRAFTER | {"num_speculative_tokens": 2})], capture_output=True, text=True, check=True)
        row = json.loads(run.stdout)["rows"][0]
        self.assertGreaterEqual(row["mean_acceptance_length"], 1)
        self.assertLessEqual(row["mean_acceptance_length"], 3)

    def test_first_drafts_come_true(self):
        before = self.counts()
        for item in self.items:
            self.said(item.messages, item.tools, 1, temperature=0)
        drafts, accepted = (after - earlier for after, earlier in zip(self.counts(), before))
        print(f"{NAME}: {accepted:.0f} of {drafts:.0f} first drafts came true", flush=True)
        self.assertGreater(drafts, 100)
        self.assertGreater(accepted / drafts, LEAST_ACCEPTED)


if __name__ == "__main__":
    unittest.main()
