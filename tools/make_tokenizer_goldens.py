#!/usr/bin/env python3
"""Writes tests/data/tokenizers/<family>/: a small tokenizer.json in the style of a model family,
trained here, and vectors.jsonl with what Hugging Face `tokenizers` makes of awkward texts.

Each line of vectors.jsonl: {"text", "ids", "ids_special", "decoded", "decoded_skip"}: ids with special
tokens taken as text, ids with them recognised, and both decodings of the latter.

Families that are served have more_ids.jsonl.xz, too: a list of ids a line, special tokens recognised, of
the texts of tests/data/o200k_harmony/vectors.jsonl.xz, then of hostile.jsonl.xz, a small part of what
tools/check_tokenizers.py compares.

Characters newer than Python's Unicode (14 in 3.11) are left out: what is a letter depends on
the version that a library knows, and PCRE2 10.42 has 14, tokenizers 0.23 has 16.

usage: tools/make_tokenizer_goldens.py     (needs PyPI tokenizers 0.23)
"""
import json
import lzma
import pathlib
import random
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data"
OUT = DATA / "tokenizers"
NUM_RANDOM_TEXTS = 250
HOSTILE_BYTES = 60_000  # of hostile.jsonl.xz
NFC = normalizers.NFC()
SERVED = ("qwen2", "qwen3_5", "llama3")

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
QWEN3_5 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
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


def is_known(character):
    """Assigned in Unicode 14, and no mark that tokenizers' NFC, of an older Unicode, does not know."""
    if unicodedata.category(character) in ("Cn", "Cs"):
        return False
    among_marks = ["x\u0301" + character + "\u0316", "e" + character + "\u0334"]
    return all(NFC.normalize_str(s) == unicodedata.normalize("NFC", s) for s in among_marks)


def random_character(rng):
    """"" where the draw met none that is known."""
    code = rng.choice([rng.randint(0, 0x2ff), rng.randint(0x300, 0xd7ff),
                       rng.randint(0xe000, 0xffff), rng.randint(0x10000, 0x1ffff)])
    return chr(code) if is_known(chr(code)) else ""


def hostile(num_bytes, seed, added):
    """Texts of `num_bytes` in all: runs, ragged mixtures, marks out of order, half and whole
    spellings of added tokens, any character that there is."""
    rng = random.Random(seed)
    words = " ".join(CORPUS).split()
    draws = [lambda: rng.choice(AWKWARD), lambda: random_character(rng),
             lambda: rng.choice(["", " "]) + rng.choice(words),
             lambda: rng.choice(AWKWARD) * rng.choice([2, 3, 17, 200]),
             lambda: "".join(rng.choices("\u0301\u0316\u0323\u0308\u3099\u093c\u1161", k=6)),
             lambda: rng.choice(added)[:rng.randint(1, 30)], lambda: rng.choice(added),
             lambda: "".join(rng.choices("0123456789", k=rng.randint(1, 12))),
             lambda: "".join(rng.choices(" \t\r\n\u00a0\u3000", k=rng.randint(1, 9))),
             lambda: rng.choice(["'", "\u2019", "x'", " '"]) + rng.choice("sStTrReEvVmMlLdDſ")]
    while num_bytes > 0:
        weights = [rng.random() ** 3 for _ in draws]
        text = "".join(draw() for draw in rng.choices(draws, weights, k=rng.choice([3, 30, 300])))
        num_bytes -= len(text.encode())
        yield text


def texts(added):
    """Awkward texts, the added tokens' spellings mixed in."""
    rng = random.Random(20261121)
    out = list(FIXED)
    for token in added[:32]:
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
                parts.append(random_character(rng))
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


QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
                "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>",
                "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                "<|image_pad|>", "<|video_pad|>"]
# Added, but not special: they are recognised in any text, and are no end of anything.
QWEN_ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
              "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
              "<think>", "</think>"]


def qwen(regex):
    t = byte_level_bpe(continuing_subword_prefix="", end_of_word_suffix="")
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = splits([regex])
    train(t, 700)
    t.add_special_tokens([special(s) for s in QWEN_SPECIAL])
    t.add_tokens([AddedToken(s, normalized=False) for s in QWEN_ADDED])
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False,
                                            use_regex=False)
    return t


def llama3():
    t = byte_level_bpe(ignore_merges=True)
    t.pre_tokenizer = splits([LLAMA3])
    train(t, 700)
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1",
             "finetune_right_pad_id", "reserved_special_token_2", "start_header_id",
             "end_header_id", "eom_id", "eot_id", "python_tag"]
    names += [f"reserved_special_token_{i}" for i in range(3, 248)]
    t.add_special_tokens([special(f"<|{name}|>") for name in names])
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


def write_lines(path, values):
    text = "".join(json.dumps(v, separators=(",", ":")) + "\n" for v in values)
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def o200k_texts():
    with lzma.open(DATA / "o200k_harmony/vectors.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def write_more():
    added = QWEN_SPECIAL[:3] + QWEN_ADDED + ["<|begin_of_text|>", "<|eot_id|>", "<|python_tag|>"]
    hostile_texts = list(hostile(HOSTILE_BYTES, 1, added))
    write_lines(OUT / "hostile.jsonl.xz", hostile_texts)
    for family in SERVED:
        tokenizer = Tokenizer.from_file(str(OUT / family / "tokenizer.json"))
        write_lines(OUT / family / "more_ids.jsonl.xz",
                    [tokenizer.encode(text, add_special_tokens=False).ids
                     for text in o200k_texts() + hostile_texts])


def main():
    write("qwen2", qwen(QWEN2), merges_as_strings=True)
    write("qwen3_5", qwen(QWEN3_5))
    write("llama3", llama3())
    write("gpt2", gpt2(), merges_as_strings=True)
    write("deepseek", deepseek())
    write("added_flags", added_flags())
    write("matches_only", matches_only())
    write("gaps_only", gaps_only())
    write_more()


if __name__ == "__main__":
    main()
