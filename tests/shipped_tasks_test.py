"""The shipped model does, through the server, what its README says: the pass marks of its tasks on
held-out items, and reasoning that grows with the effort asked for. Prompts are those of its training."""

import json
import sys
import types
import unittest
import urllib.request

from serving import DATE, MODEL, NAME, SOURCE, Server

sys.path.insert(0, str(SOURCE / "tools" / "train_tiny"))
import evaluate  # noqa: E402

ITEMS = SOURCE / "tests" / "data" / "tiny_gpt_oss_items.jsonl"
IS_FIRST = NAME == "nibble-tiny-gpt-oss"
PER_TASK = 30 if IS_FIRST else 15  # efforts take turns
# Least share of items that pass: of those right, or for JSON of those valid. The second model was trained for a
# quarter as long: of 1,000 sums it has 945.
PASS_MARKS = {"arithmetic": ("right", 0.95 if IS_FIRST else 0.8), "facts": ("right", 0.95), "json": ("valid", 0.95),
              "call": ("right", 0.90)}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class ShippedTasksTest(unittest.TestCase):
    def test_prompts(self):
        chat, by_task = evaluate.family_of(MODEL).chat, {}
        for item in evaluate.load_items(ITEMS):
            by_task.setdefault(item.task, []).append(item)
        with Server() as server:
            for item in [item for items in by_task.values() for item in items[:6]]:
                body = {"messages": item.messages, "tools": item.tools, "reasoning_effort": item.effort,
                        "max_tokens": 1, "return_token_ids": True}
                ids = post(server.url + "/v1/chat/completions", body)["prompt_token_ids"]
                pieces = chat.render_prompt(item.messages, item.tools, item.effort, DATE)
                text = post(server.url + "/detokenize", {"tokens": ids})["prompt"]
                self.assertEqual(text, "".join(text for text, _ in pieces))

    def test_pass_marks(self):
        items = evaluate.load_items(ITEMS)
        with Server() as server:
            engine = evaluate.UrlEngine(server.url + "/v1", types.SimpleNamespace(model=NAME, max_new=evaluate.MAX_NEW))
            for task, (mark, least) in PASS_MARKS.items():
                with self.subTest(task):
                    chosen = [item for item in items if item.task == task][:PER_TASK]
                    self.assertEqual(len(chosen), PER_TASK)
                    summary, failures = evaluate.score_items(engine, chosen, keep_failures=5)
                    print(task, summary, flush=True)
                    self.assertGreaterEqual(summary[mark], least, failures)
                    tokens = summary["reasoning_tokens"]
                    self.assertLess(tokens["low"], tokens["medium"])
                    self.assertLess(tokens["medium"], tokens["high"])


if __name__ == "__main__":
    unittest.main()
