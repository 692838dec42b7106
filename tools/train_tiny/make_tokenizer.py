"""Train the byte-level BPE of a small model and write tokenizer.json, structured as its family's own.

Ids are ranks: 256 bytes, then one token per merge, then the special tokens: Harmony's 21 in gpt-oss's
order, or those of Qwen's that the model uses. No token holds two digits: numbers reach the model
digit by digit.
  python make_tokenizer.py --model DIR [--family qwen3_next] [--seed 1] [--conversations 60000]
"""

import argparse
import json
import pathlib
import random
import re

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import chatml
import conversations
from families import FAMILIES

BPE_SIZE = 3000
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
NAMED = {
    0: "startoftext",
    1: "endoftext",
    4: "return",
    5: "constrain",
    7: "channel",
    8: "start",
    9: "end",
    10: "message",
    14: "call",
    20: "endofprompt",
}
HARMONY_SPECIALS = [f"<|{NAMED.get(i, f'reserved_{BPE_SIZE + i}')}|>" for i in range(21)]
VOCAB_SIZE = 3072  # rows of the embedding: some have no token, as in gpt-oss


def corpus(seed, count, chat):
    rng = random.Random(f"tokenizer {seed}")
    for _ in range(count):
        text = "".join(piece for piece, _ in conversations.training_pieces(rng, chat))
        yield from (part for part in re.split(r"<\|[a-z_]+\|>|</?(?:think|tool_\w+)>", text) if part)


def train_bpe(seed, count, chat, pattern):
    """The vocabulary in order of rank, and its merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed, count, chat), trainer)
    ranks = tokenizer.get_vocab()
    assert len(ranks) == BPE_SIZE, "the corpus is too small for the vocabulary"
    return sorted(ranks, key=ranks.get), json.loads(tokenizer.to_str())["model"]["merges"]


def all_splits(vocabulary):
    """Every split of a token into two tokens, by rank of the product, then of the parts: gpt-oss's merges."""
    rank = {token: i for i, token in enumerate(vocabulary)}
    splits = [
        (rank[t], rank[t[:i]], rank[t[i:]], t[:i], t[i:])
        for t in vocabulary
        for i in range(1, len(t))
        if t[:i] in rank and t[i:] in rank
    ]
    return [[left, right] for _, _, _, left, right in sorted(splits)]


def added_tokens(specials):
    """By id. Qwen's marks of thoughts and tools are no special tokens: a decoded text has them."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        BPE_SIZE + i: {"content": content, **flags, "special": content.startswith("<|")}
        for i, content in enumerate(specials)
    }


def tokenizer_json(vocabulary, merges, pattern, specials, is_qwen):
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    outer = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    if is_qwen:
        level, outer = {**level, "trim_offsets": False}, {**level, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **token} for i, token in added_tokens(specials).items()],
        "normalizer": {"type": "NFC"} if is_qwen else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": False,
                },
                level,
            ],
        },
        "post_processor": {**outer, "trim_offsets": False},
        "decoder": outer,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": not is_qwen,
            "vocab": {token: i for i, token in enumerate(vocabulary)},
            "merges": merges,
        },
    }


def tokenizer_config(specials, is_qwen):
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    ends = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
    }
    if is_qwen:
        ends = {"bos_token": None, "eos_token": chatml.END, "pad_token": chatml.PAD}
    return {
        "added_tokens_decoder": {
            str(i): {key: token[key] for key in keys} for i, token in added_tokens(specials).items()
        },
        **ends,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "Qwen2Tokenizer" if is_qwen else "PreTrainedTokenizerFast",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--family", choices=FAMILIES, default="gpt_oss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=60000)
    args = parser.parse_args()
    args.model.mkdir(parents=True, exist_ok=True)
    family, is_qwen = FAMILIES[args.family], args.family == "qwen3_next"
    pattern, specials = (QWEN, chatml.SPECIALS) if is_qwen else (O200K, HARMONY_SPECIALS)
    vocabulary, merges = train_bpe(args.seed, args.conversations, family.chat, pattern)
    merges = merges if is_qwen else all_splits(vocabulary)
    config = tokenizer_config(specials, is_qwen)
    write = lambda name, value, **kw: (args.model / name).write_text(
        json.dumps(value, ensure_ascii=False, **kw) + "\n"
    )
    write("tokenizer.json", tokenizer_json(vocabulary, merges, pattern, specials, is_qwen), indent=1)
    write("tokenizer_config.json", config, indent=2)
    ends = [k for k in ("bos_token", "eos_token", "pad_token") if config[k]]
    write("special_tokens_map.json", {k: config[k] for k in ends}, indent=2)


if __name__ == "__main__":
    main()
