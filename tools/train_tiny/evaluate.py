"""Score a checkpoint on held-out items at temperature 0.

python evaluate.py --model DIR [--count 1000] [--tasks arithmetic,facts] [--json scores.json]
python evaluate.py --items tests/data/... --url http://127.0.0.1:8000/v1       (any OpenAI server)
python evaluate.py --model DIR --ablations [--count 200]     what the answers need: ABLATIONS of the model's file
python evaluate.py --model DIR --drafts [--count 100]        how often the first draft of MTP is what is said
"""

import argparse
import dataclasses
import json
import pathlib
import time
import urllib.request

from families import family_of

TASKS = (
    "arithmetic",
    "more_arithmetic",
    "word_problem",
    "facts",
    "lookup",
    "sorting",
    "spelling",
    "json",
    "call",
    "tool_answer",
    "follow_up",
    "small_talk",
    "out_of_domain",
)
MAX_NEW = 400


class TorchEngine:
    """Greedy decoding in float32 with our own forward, many prompts at once."""

    def __init__(self, directory, args, change=None, swap_nibbles=False):
        import torch
        from tokenizers import Tokenizer

        family = family_of(directory)
        self.torch, self.device, self.chat = torch, args.device, family.chat
        self.batch, self.max_new = args.batch, args.max_new
        self.model = family.module().load(directory, swap_nibbles)
        if change:
            change(self.model)
        self.model.to(self.device)
        self.tokenizer = Tokenizer.from_file(str(pathlib.Path(directory) / "tokenizer.json"))
        self.stops = torch.tensor(
            [self.tokenizer.token_to_id(s) for s in self.chat.STOPS], device=self.device
        )

    def prompt_ids(self, item):
        pieces = self.chat.render_prompt(item.messages, item.tools, item.effort, item.date)
        encoded = self.tokenizer.encode_batch([text for text, _ in pieces])
        return [i for piece in encoded for i in piece.ids]

    def answers(self, items, progress=lambda done: None):
        encoded = [self.prompt_ids(item) for item in items]
        order = sorted(range(len(items)), key=lambda i: len(encoded[i]))
        out = [None] * len(items)
        for at in range(0, len(order), self.batch):
            chosen = order[at : at + self.batch]
            for i, ids in zip(chosen, self.greedy([encoded[i] for i in chosen])):
                out[i] = {
                    **self.chat.parse(self.tokenizer.decode(ids, skip_special_tokens=False)),
                    "tokens": len(ids),
                    "reasoning_tokens": self.reasoning_length(ids),
                }
            progress(min(at + self.batch, len(order)))
        return out

    def reasoning_length(self, ids):
        text = self.chat.parse(self.tokenizer.decode(ids, skip_special_tokens=False))["reasoning"]
        return len(self.tokenizer.encode(text).ids)

    def greedy(self, prompts):
        torch, width = self.torch, max(map(len, prompts))
        padding = torch.tensor([width - len(p) for p in prompts], device=self.device)
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=self.device)
        cache = self.model.new_cache(len(prompts), width + self.max_new, self.device)
        done = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        sampled, start = [], 0
        for step in range(self.max_new):
            logits = self.model.decode(ids, cache, start, padding)
            start += ids.shape[1]
            ids = logits[:, -1].argmax(-1, keepdim=True)
            sampled.append(ids)
            done |= torch.isin(ids[:, 0], self.stops)
            if step % 8 == 7 and bool(done.all()):
                break
        stops = set(self.stops.tolist())
        rows = torch.cat(sampled, 1).tolist()
        ends = [next((i + 1 for i, t in enumerate(row) if t in stops), len(row)) for row in rows]
        return [row[:end] for row, end in zip(rows, ends)]


    def first_drafts(self, items):
        """(drafts that are the token said, drafts) of MTP behind each token of the answers to items."""
        torch, right, made = self.torch, 0, 0
        for at in range(0, len(items), self.batch):
            prompts = [self.prompt_ids(item) for item in items[at : at + self.batch]]
            texts = [prompt + said for prompt, said in zip(prompts, self.greedy(prompts))]
            width = max(map(len, texts))
            ids = torch.tensor([t + [0] * (width - len(t)) for t in texts], device=self.device)
            with torch.no_grad():
                drafts = self.model.drafts(self.model.rows(ids)[0], ids)[0].argmax(-1)
            for row, (prompt, text) in enumerate(zip(prompts, texts)):
                said = slice(len(prompt) + 1, len(text))  # the first is not drafted
                hits = drafts[row, len(prompt) - 1 : len(text) - 2] == ids[row, said]
                right, made = right + int(hits.sum()), made + len(hits)
        return right, made


class UrlEngine:
    """An OpenAI-compatible server, one request at a time."""

    def __init__(self, url, args):
        self.url, self.model_name, self.max_new = url.rstrip("/"), args.model, args.max_new

    def answers(self, items, progress=lambda done: None):
        return [self.answer(item) for item in items]

    def answer(self, item):
        body = {
            "messages": item.messages,
            "temperature": 0,
            "reasoning_effort": item.effort,
            "max_tokens": self.max_new,
        }
        body |= {"model": self.model_name} if self.model_name else {}
        body |= {"tools": item.tools} if item.tools else {}
        request = urllib.request.Request(
            self.url + "/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            reply = json.load(response)
        message, usage = reply["choices"][0]["message"], reply.get("usage", {})
        calls = message.get("tool_calls") or []
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        return {
            "reasoning": reasoning,
            "content": message.get("content") or "",
            "tokens": usage.get("completion_tokens", 0),
            "reasoning_tokens": usage.get("completion_tokens_details", {}).get(
                "reasoning_tokens", len(reasoning.split())
            ),
            "call": calls[0]["function"] if calls else None,
        }


def score_items(engine, items, keep_failures=0):
    """{"right": share, "valid", "name" where they apply, "reasoning": mean tokens by effort}"""
    from item import score

    replies = engine.answers(items)
    marks, failures, lengths = {}, [], {}
    for item, reply in zip(items, replies):
        result = score(item.expect, reply["content"], reply["call"])
        for key, good in result.items():
            marks.setdefault(key, []).append(good)
        lengths.setdefault(item.effort, []).append((reply["reasoning_tokens"], result["right"]))
        if not result["right"] and len(failures) < keep_failures:
            failures.append(
                {
                    "item": {
                        k: v
                        for k, v in dataclasses.asdict(item).items()
                        if k in ("messages", "effort", "expect")
                    },
                    "reply": reply,
                }
            )
    summary = {key: round(sum(values) / len(values), 4) for key, values in marks.items()}
    summary["items"] = len(items)
    summary["reasoning_tokens"] = {
        e: round(sum(n for n, _ in v) / len(v), 1) for e, v in lengths.items()
    }
    summary["right_by_effort"] = {
        e: round(sum(r for _, r in v) / len(v), 4) for e, v in lengths.items()
    }
    return summary, failures


def load_items(path):
    from item import Item

    lines = pathlib.Path(path).read_text().splitlines()
    return [Item(key="", **json.loads(line)) for line in lines if line]


def items_of(args, task):
    import conversations

    return (
        [i for i in load_items(args.items) if i.task == task]
        if args.items
        else conversations.held_out_items(task, args.count, args.seed)
    )


def run(engine, args, tasks, keep_failures=0):
    table, failures = {}, {}
    for task in tasks:
        items = items_of(args, task)
        if not items:
            continue
        start = time.time()
        table[task], failures[task] = score_items(engine, items, keep_failures)
        print(f"{task:16s} {table[task]} {time.time() - start:.1f} s", flush=True)
    return table, failures


def run_drafts(engine, args, tasks):
    table, total = {}, [0, 0]
    for task in tasks:
        right, made = engine.first_drafts(items_of(args, task))
        table[task] = round(right / made, 4)
        total = [total[0] + right, total[1] + made]
        print(f"{task:16s} {table[task]}", flush=True)
    table["all"] = round(total[0] / total[1], 4)
    print(f"all of {total[1]} drafts {table['all']}", flush=True)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="checkpoint directory; with --url the served model's name")
    parser.add_argument("--url")
    parser.add_argument("--items", help="JSONL of items instead of generated ones")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--max-new", type=int, default=MAX_NEW)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--failures", type=pathlib.Path)
    args = parser.parse_args()
    tasks = args.tasks.split(",")
    if args.ablations:
        table, failures = {}, {}
        for name, (change, swap) in family_of(args.model).module().ABLATIONS.items():
            print(name, flush=True)
            engine = TorchEngine(args.model, args, change, swap)
            table[name], _ = run(engine, args, tasks)
    elif args.drafts:
        table, failures = run_drafts(TorchEngine(args.model, args), args, tasks), {}
    else:
        engine = UrlEngine(args.url, args) if args.url else TorchEngine(args.model, args)
        table, failures = run(engine, args, tasks, 40 if args.failures else 0)
    if args.json:
        args.json.write_text(json.dumps(table, indent=1) + "\n")
    if args.failures:
        args.failures.write_text(json.dumps(failures, indent=1) + "\n")


if __name__ == "__main__":
    main()
