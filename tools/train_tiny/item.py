"""One exercise: what the user says, what the model is to answer, and how an answer is scored."""

import dataclasses
import hashlib
import json
import re
import string

import tables

ALL_WORDS = [w.lower() for w in tables.WORDS + tables.ITEMS + tables.COLORS + tables.NAMES]
EFFORTS = ("low", "medium", "high")
HELD_OUT_SHARE = 5  # one key in five is never trained on


@dataclasses.dataclass
class Item:
    task: str
    key: str  # what makes the problem this problem: its hash decides whether it is held out
    messages: list  # OpenAI-shaped
    expect: dict  # one of: number, text, json, call, values
    reasoning: str = ""
    answer: str = ""
    call: dict = None  # {"name", "arguments": JSON text}
    tools: list = dataclasses.field(default_factory=list)
    effort: str = "medium"
    date: str = ""


def held_out(key):
    """Keys that begin with "known" are for every one to learn: one-digit sums, greetings."""
    return (
        not key.startswith("known")
        and hashlib.sha256(key.encode()).digest()[0] * HELD_OUT_SHARE < 256
    )


def random_date(rng):
    return f"{rng.randint(2023, 2031)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def random_effort(rng):
    return rng.choice(EFFORTS)


def pseudo_word(rng):
    """A name that no table holds, so that copying is learned, not names."""
    kind = rng.random()
    if kind < 0.5:
        parts = ("bcdfghjklmnprstvwz", "aeiou", ["", "", "n", "r", "s", "l"])
        return "".join(rng.choice(part) for _ in range(rng.randint(2, 3)) for part in parts)
    if kind < 0.85:  # the head of one word and the tail of another
        head, tail = rng.choice(ALL_WORDS), rng.choice(ALL_WORDS)
        return head[: rng.randint(1, 5)] + tail[-rng.randint(2, 5) :]
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(2, 7)))


def person(rng):
    return rng.choice(tables.NAMES) if rng.random() < 0.7 else pseudo_word(rng).capitalize()


def noun(rng):
    return rng.choice(tables.ITEMS) if rng.random() < 0.7 else pseudo_word(rng)


def city(rng):
    return rng.choice(tables.CITIES) if rng.random() < 0.8 else pseudo_word(rng).capitalize()


def plural(word):
    if word.endswith("fe"):
        return word[:-2] + "ves"
    return word + ("es" if word.endswith(("s", "x", "sh", "ch", "to", "z")) else "s")


def join_and(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def dress(rng, text):
    """The same question as another user might type it."""
    shape = rng.random()
    if shape < 0.10:
        text = text[0].lower() + text[1:].replace("'s ", "s " if rng.random() < 0.3 else "'s ", 1)
    elif shape < 0.16:
        text = text.rstrip("?.")
    elif shape < 0.20:
        text = text[0].lower() + text[1:].rstrip("?.")
    elif shape < 0.36:
        prefix = [
            "Please: ",
            "Quick question: ",
            "Hi! ",
            "Hello. ",
            "Tell me: ",
            "I wonder: ",
            "Question: ",
            "Ok, next. ",
            "Now: ",
            "So, ",
        ]
        text = rng.choice(prefix) + text
    elif shape < 0.44:
        text += rng.choice([" Thanks!", " Please.", " Thank you.", " Be quick.", " Take care."])
    return text


def random_prose(rng):
    """Words without sense, as a benchmark sends them."""
    words = [
        (
            rng.choice(tables.WORDS + tables.ITEMS)
            if rng.random() < 0.6
            else rng.choice(
                "the a of to and in is was it that he she had with for on as at his her but not be all they you".split()
            )
        )
        for _ in range(rng.randint(8, 80))
    ]
    return " ".join(words) + rng.choice([".", "", "?", "..."])


def user(text):
    return [{"role": "user", "content": text}]


# ---- scoring --------------------------------------------------------------------------------


def numbers_in(text):
    return [int(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*", text)]


def contains(text, words):
    return re.search(r"(?<![A-Za-z0-9])" + re.escape(words) + r"(?![A-Za-z0-9])", text) is not None


def parse_json(text):
    try:
        return True, json.loads(text)
    except ValueError:
        return False, None


def score(expect, content, call):
    """{"right": bool, ...}. content: the final channel's text; call: {"name","arguments"} or None."""
    content = content or ""
    if "call" in expect:
        good, arguments = parse_json(call["arguments"]) if call else (False, None)
        name = bool(call) and call["name"] == expect["call"]["name"]
        return {
            "right": name and good and arguments == expect["call"]["arguments"],
            "name": name,
            "valid": good,
        }
    if call:
        return {"right": False}
    if "json" in expect:
        good, value = parse_json(content)
        return {"right": good and value == expect["json"], "valid": good}
    if "number" in expect:
        found = numbers_in(content)
        return {"right": bool(found) and found[-1] == expect["number"]}
    if "values" in expect:
        return {"right": all(contains(content, value) for value in expect["values"])}
    return {"right": contains(content, expect["text"])}
