"""Train the byte-level BPE of the small model and write tokenizer.json, structured as gpt-oss's own.

Ids are ranks: 256 bytes, then one token per merge, then Harmony's 21 special tokens in gpt-oss's
order. No token holds two digits: numbers reach the model digit by digit.
  python make_tokenizer.py --model DIR [--seed 1] [--conversations 60000]
"""

import argparse
import json
import pathlib
import random
import re

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import conversations

BPE_SIZE = 3000
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
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
SPECIALS = [f"<|{NAMED.get(i, f'reserved_{BPE_SIZE + i}')}|>" for i in range(21)]
VOCAB_SIZE = 3072  # rows of the embedding: some have no token, as in gpt-oss


def corpus(seed, count):
    rng = random.Random(f"tokenizer {seed}")
    for _ in range(count):
        text = "".join(piece for piece, _ in conversations.training_pieces(rng))
        yield from (part for part in re.split(r"<\|[a-z]+\|>", text) if part)


def train_vocabulary(seed, count):
    """Tokens in order of rank."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed, count), trainer)
    ranks = tokenizer.get_vocab()
    assert len(ranks) == BPE_SIZE, "the corpus is too small for the vocabulary"
    return sorted(ranks, key=ranks.get)


def merges_of(vocabulary):
    """Every split of a token into two tokens, by rank of the product, then of the parts."""
    rank = {token: i for i, token in enumerate(vocabulary)}
    splits = [
        (rank[t], rank[t[:i]], rank[t[i:]], t[:i], t[i:])
        for t in vocabulary
        for i in range(1, len(t))
        if t[:i] in rank and t[i:] in rank
    ]
    return [[left, right] for _, _, _, left, right in sorted(splits)]


def tokenizer_json(vocabulary):
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    outer = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": BPE_SIZE + i,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, content in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": O200K},
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
            "ignore_merges": True,
            "vocab": {token: i for i, token in enumerate(vocabulary)},
            "merges": merges_of(vocabulary),
        },
    }


def tokenizer_config():
    return {
        "added_tokens_decoder": {
            str(BPE_SIZE + i): {
                "content": content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for i, content in enumerate(SPECIALS)
        },
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=60000)
    args = parser.parse_args()
    args.model.mkdir(parents=True, exist_ok=True)
    vocabulary = train_vocabulary(args.seed, args.conversations)
    write = lambda name, value, **kw: (args.model / name).write_text(
        json.dumps(value, ensure_ascii=False, **kw) + "\n"
    )
    write("tokenizer.json", tokenizer_json(vocabulary), indent=1)
    write("tokenizer_config.json", tokenizer_config(), indent=2)
    write(
        "special_tokens_map.json",
        {k: tokenizer_config()[k] for k in ("bos_token", "eos_token", "pad_token")},
        indent=2,
    )


if __name__ == "__main__":
    main()
