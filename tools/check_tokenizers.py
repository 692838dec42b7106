#!/usr/bin/env python3
"""Compares nibble's ids with Hugging Face `tokenizers` on megabytes of hostile text, for the families of
tests/data/tokenizers that are served. Prints a line a family; fails at the first text that differs.

usage: tools/check_tokenizers.py [--megabytes 10] [--seed 1] [--nibble build/cpu/nibble]
           (needs PyPI tokenizers 0.23)
"""
import argparse
import json
import subprocess
import sys

from make_tokenizer_goldens import OUT, QWEN_ADDED, QWEN_SPECIAL, SERVED, hostile
from tokenizers import Tokenizer


def ours(nibble, folder, texts, flags):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    done = subprocess.run([nibble, "tokenize", folder, "--jsonl", *flags], input=lines,
                          capture_output=True, check=True, text=True)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def check(args, family):
    folder = str(OUT / family)
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    added = QWEN_SPECIAL[:3] + QWEN_ADDED + ["<|begin_of_text|>", "<|eot_id|>", "<|python_tag|>"]
    texts = list(hostile(args.megabytes * 1_000_000, args.seed, added))
    num_ids = 0
    for specials, flags in ((True, ["--specials"]), (False, [])):
        tokenizer.encode_special_tokens = not specials
        for text, ids in zip(texts, ours(args.nibble, folder, texts, flags), strict=True):
            expected = tokenizer.encode(text, add_special_tokens=False).ids
            num_ids += len(ids)
            if ids != expected:
                at = next(i for i, (a, b) in enumerate(zip(ids + [-1], expected + [-1])) if a != b)
                sys.exit(f"check_tokenizers: {family}: id {at} differs: {ids[at:at + 8]} instead of "
                         f"{expected[at:at + 8]} after {tokenizer.decode(expected[:at])[-40:]!a} in "
                         f"the text that begins {text[:80]!a}")
    size = sum(len(text.encode()) for text in texts)
    print(f"{family}: {len(texts)} texts, {size / 1e6:.1f} MB, {num_ids} ids, with and without "
          "special tokens: equal", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nibble", default="build/cpu/nibble")
    args = parser.parse_args()
    for family in SERVED:
        check(args, family)


if __name__ == "__main__":
    main()
