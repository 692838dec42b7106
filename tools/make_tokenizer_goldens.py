#!/usr/bin/env python3
"""Writes tests/data/tokenizers/<family>/: a small tokenizer.json in the style of a model family,
trained here, and vectors.jsonl with what Hugging Face `tokenizers` makes of awkward texts.

Each line of vectors.jsonl: {"text", "ids", "ids_special", "decoded", "decoded_skip"}: ids with special
tokens taken as text, ids with them recognised, and both decodings of the latter.

Characters newer than Python's Unicode (14 in 3.11) are left out: what is a letter depends on
the version that a library knows, and PCRE2 10.42 has 14, tokenizers 0.23 has 16.

usage: tools/make_tokenizer_goldens.py     (needs PyPI tokenizers 0.23)
"""
import json
import pathlib
import random
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tokenizers"
NUM_RANDOM_TEXTS = 250

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

CORPUS = """the quick brown fox jumps over the lazy dog and then it doesn't stop running there
The Model answers: I'm here, we've been there, they'll go; you'd know. DON'T shout!
def main(argc, argv): return {"key": [1, 2.5, 300], "other": None}  # comment
for (int i = 0; i < 10; ++i) { printf("%d\\n", i); }
der schnelle braune Fuchs springt über den faulen Hund, natürlich größer
el zorro marrón rápido salta sobre el perro perezoso mañana también
быстрая коричневая лиса прыгает через ленивую собаку
素早い茶色の狐がのろまな犬を飛び越える 日本語のテスト
敏捷的棕色狐狸跳过了懒狗 中文文本
빠른 갈색 여우가 게으른 개를 뛰어넘는다 한국어
الثعلب البني السريع يقفز فوق الكلب الكسول
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है
""".splitlines()

# Characters where tokenizers go wrong: cases, marks, blanks of all kinds, folding, Hangul, emoji.
AWKWARD = (list("aAbBzZ09 '\n\r\t.,!?/\\<>|{}[]()_-#@") + list("éÉñßſİıŉǅʰªº²½Ⅷ٣०一語かカ한글ⅻ") +
           ["\u0301", "\u0316", "\u0308", "\u00a0", "\u1680", "\u180e", "\u2003", "\u2028", "\u200b",
            "\u200d", "\u202f", "\u3000", "\u0085", "\u000b", "\u000c", "\u001c", "\u0000", "\ufeff",
            "\ufffd", "💖", "👩\u200d👧", "🇩🇪", "e\u0301", "A\u030a", "\u1112\u1161\u11ab", "\u212b",
            "\u0958", "\u2126", "'s", "'ll", "'RE", "'\u017f", "  ", "   ", "\r\n", "\n\n", "123",
            "12345678", "don't", " the", "the", "Über", "über"])
FIXED = ["", " ", "  ", "a", "hello world", "Hello, World!", "  leading", "trailing  ", "a  b   c",
         "tab\tand\nnewline\r\n\r\n end", "I'm don't WE'LL he'S", "12 345 6789", "x = {\n\t\"k\": 1\n}",
         "e\u0301\u0316 e\u0316\u0301 \u0301", "\ufb01 ﬁ Å Å", "💖👩\u200d👩\u200d👧", "\x00\x01\x7f"]


def texts(added):
    """Awkward texts, the added tokens' spellings mixed in."""
    rng = random.Random(20261121)
    out = list(FIXED)
    for token in added:
        for pattern in ("{}", "a{}b", " {} ", "{}{}", "x {}\n\n{} y", "  {}  ", "é{}é", "_{}!", "<{}>"):
            out.append(pattern.replace("{}", token))
        out.append(token[:-1])
        out.append(token[1:])
    words = " ".join(CORPUS).split()
    for _ in range(NUM_RANDOM_TEXTS):
        parts = []
        for _ in range(rng.randint(1, 14)):
            kind = rng.random()
            if kind < 0.6:
                parts.append(rng.choice(AWKWARD))
            elif kind < 0.85:
                parts.append(rng.choice(["", " "]) + rng.choice(words))
            elif kind < 0.95 and added:
                parts.append(rng.choice(added))
            else:
                code = rng.choice([rng.randint(0, 0x2ff), rng.randint(0x300, 0xd7ff),
                                   rng.randint(0xe000, 0xffff), rng.randint(0x10000, 0x1ffff)])
                if unicodedata.category(chr(code)) not in ("Cn", "Cs"):
                    parts.append(chr(code))
        out.append("".join(parts))
    return list(dict.fromkeys(out))


def train(tokenizer, vocab_size, specials=()):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(specials),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    return tokenizer


def splits(regexes, behavior="isolated", invert=False, prefix_space=False):
    steps = [pre_tokenizers.Split(Regex(r), behavior, invert) for r in regexes]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)
    return pre_tokenizers.Sequence(steps + [byte_level])


def special(content, **flags):
    return AddedToken(content, special=True, normalized=flags.pop("normalized", False), **flags)


def byte_level_bpe(**options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen2():
    t = byte_level_bpe()
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = splits([QWEN2])
    train(t, 700)
    t.add_special_tokens([special(s) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    t.add_tokens([AddedToken(s, normalized=False)
                  for s in ("<tool_call>", "</tool_call>", "<think>", "</think>")])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def llama3():
    t = byte_level_bpe(ignore_merges=True)
    t.pre_tokenizer = splits([LLAMA3])
    train(t, 700)
    t.add_special_tokens([special(s) for s in (
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eot_id|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>")])
    bos = "<|begin_of_text|>"
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                      special_tokens=[(bos, t.token_to_id(bos))])])
    return t


def gpt2():
    t = byte_level_bpe()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    return train(t, 600, ["<|endoftext|>"])


def deepseek():
    t = byte_level_bpe()
    t.pre_tokenizer = splits(DEEPSEEK)
    train(t, 700)
    t.add_special_tokens([special(s) for s in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")])
    return t


def added_flags():
    """Every flag of an added token, and tokens that are prefixes of others."""
    t = byte_level_bpe()
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = splits([LLAMA3], prefix_space=True)
    train(t, 500)
    t.add_special_tokens([special("<left>", lstrip=True), special("<right>", rstrip=True),
                          special("<both>", lstrip=True, rstrip=True), special("<<"),
                          special("<word>", single_word=True), special("norm", normalized=True)])
    t.add_tokens([AddedToken("quick", single_word=True), AddedToken("<<<", normalized=False),
                  AddedToken("é", normalized=True), AddedToken("\u0958w", normalized=True)])
    return t


def matches_only():
    """What the expression does not match is dropped, as some conversions of tiktoken files say."""
    t = byte_level_bpe()
    t.pre_tokenizer = splits([r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"], "removed", True)
    return train(t, 400)


def gaps_only():
    t = byte_level_bpe()
    t.pre_tokenizer = splits([r"\s+"], "removed", False)
    return train(t, 400)


def vector(t, text):
    t.encode_special_tokens = True
    ids = t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = False
    ids_special = t.encode(text, add_special_tokens=False).ids
    return {"text": text, "ids": ids, "ids_special": ids_special,
            "decoded": t.decode(ids_special, skip_special_tokens=False),
            "decoded_skip": t.decode(ids_special, skip_special_tokens=True)}


def write(name, tokenizer, merges_as_strings=False):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    tree = json.loads(tokenizer.to_str())
    if merges_as_strings:  # the form of files written before tokenizers 0.20
        tree["model"]["merges"] = [" ".join(pair) for pair in tree["model"]["merges"]]
    text = json.dumps(tree, ensure_ascii=False)
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    added = [t["content"] for t in tree["added_tokens"]]
    with open(folder / "vectors.jsonl", "w", encoding="utf-8") as out:
        for text in texts(added):
            out.write(json.dumps(vector(tokenizer, text), separators=(",", ":")) + "\n")


def main():
    write("qwen2", qwen2(), merges_as_strings=True)
    write("llama3", llama3())
    write("gpt2", gpt2(), merges_as_strings=True)
    write("deepseek", deepseek())
    write("added_flags", added_flags())
    write("matches_only", matches_only())
    write("gaps_only", gaps_only())


if __name__ == "__main__":
    main()
