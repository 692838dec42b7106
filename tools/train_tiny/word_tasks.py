"""Sorting, comparing, counting and spelling."""

import string

import tables
from item import ALL_WORDS, Item, dress, pseudo_word, user


def comparing(rng, effort):
    """The largest or smallest of some numbers; counting from one number to another."""
    if rng.random() < 0.3:
        start = rng.randint(0, 90)
        things = list(range(start, start + rng.randint(3, 12)))
        text = rng.choice(
            ["Count from {} to {}.", "Count from {} to {}", "List the numbers from {} to {}."]
        )
        text, result = text.format(things[0], things[-1]), ", ".join(map(str, things))
        reasoning = {
            "low": "Count.",
            "medium": f"I count from {things[0]} to {things[-1]}.",
            "high": f"The user wants the numbers from {things[0]} to {things[-1]}. I start with {things[0]} "
            f"and add 1 until {things[-1]}.",
        }[effort]
        return Item(
            "sorting", f"count {text}", user(dress(rng, text)), {"text": result}, reasoning, result
        )
    things = rng.sample(range(rng.choice([20, 100, 1000])), rng.randint(2, 5))
    word = rng.choice(["largest", "biggest", "greatest", "smallest", "least"])
    value = min(things) if word in ("smallest", "least") else max(things)
    listed = ", ".join(map(str, things))
    asks = [
        f"What is the {word} of {listed}?",
        f"Which number is the {word}: {listed}?",
        f"Find the {word} of {listed}.",
    ]
    if len(things) == 2:
        more = {"smallest": "smaller", "least": "less"}.get(word, "bigger")
        asks += [
            f"Which is {more}, {things[0]} or {things[1]}?",
            f"Is {things[0]} or {things[1]} {more}?",
        ]
    reasoning = {
        "low": f"{word} of {len(things)}.",
        "medium": f"I look for the {word} of {listed}.",
        "high": f"I look for the {word} of {listed}. In order: {', '.join(map(str, sorted(things)))}. It is {value}.",
    }[effort]
    answer = f"The {word} is {value}."
    return Item(
        "sorting",
        f"compare {listed}",
        user(dress(rng, rng.choice(asks))),
        {"number": value},
        reasoning,
        answer,
    )


def sorting(rng, effort):
    if rng.random() < 0.25:
        return comparing(rng, effort)
    down = rng.random() < 0.3
    if rng.random() < 0.6:
        things = rng.sample(range(rng.choice([20, 100, 100, 1000])), rng.randint(3, 7))
        ask = rng.choice(
            [
                "Sort these numbers: {}",
                "Sort {}.",
                "Put these numbers in order: {}.",
                "Order the numbers {}.",
                "Please sort {}",
            ]
        )
        order = (
            rng.choice([" from large to small", " in descending order"])
            if down
            else rng.choice(["", "", " from small to large", " in ascending order"])
        )
    else:
        pool = rng.choice([tables.WORDS, tables.NAMES, tables.ITEMS, tables.COLORS])
        if rng.random() < 0.15:
            pool = [pseudo_word(rng) for _ in range(6)]
        things = rng.sample(sorted(set(pool)), rng.randint(3, 6))
        ask = rng.choice(
            [
                "Sort these words: {}",
                "Sort {} by alphabet.",
                "Put these words in alphabetical order: {}.",
                "Alphabetize {}.",
                "Sort the words {}",
            ]
        )
        order, down = "", False
    given = rng.choice([", ", ", ", " "]).join(map(str, things))
    text = ask.format(given)
    text = text.rstrip(".") + order + "." if order else text
    result = ", ".join(map(str, sorted(things, reverse=down)))
    extreme = "largest" if down else "smallest" if isinstance(things[0], int) else "first"
    rest, steps = sorted(things, reverse=down), []
    while len(rest) > 1:
        steps.append(
            f"{extreme} {rest[0]}, left {' '.join(str(t) for t in things if t in rest[1:])}."
        )
        rest = rest[1:]
    reasoning = {
        "low": f"Sort {len(things)}.",
        "medium": f"Sort {len(things)} things. " + result + ".",
        "high": f"Sort {len(things)} things: {' '.join(map(str, things))}. "
        + " ".join(steps)
        + f" Last {rest[0]}. So {result}.",
    }[effort]
    return Item(
        "sorting",
        "sort " + " ".join(map(str, things)),
        user(dress(rng, text)),
        {"text": result},
        reasoning,
        result,
    )


def find_letter(rng, effort, word):
    """How often a letter stands in a word."""
    letter = rng.choice(word) if rng.random() < 0.8 else rng.choice(string.ascii_lowercase)
    places = [f"{c}{i}" for i, c in enumerate(word, 1) if c == letter]
    found = " ".join(places) or "none"
    text = rng.choice(
        [
            "How many {c} are in {w}?",
            "How often does {w} have the letter {c}?",
            "Count the letter {c} in {w}.",
            "How many {c}'s are in {w}?",
            "how many {c} in {w}?",
            "How many times is {c} in {w}?",
        ]
    )
    work = f"{'-'.join(word)}: {found}"
    reasoning = {
        "low": work + ".",
        "medium": f"The word is {word}: {work}. That makes {len(places)}.",
        "high": f"The user asks how often {letter} stands in {word}. Its letters one by one: "
        + " ".join(f"{c}{i}" for i, c in enumerate(word, 1))
        + f". With {letter}: {found}. That makes {len(places)}.",
    }[effort]
    answer = f"The letter {letter} is {len(places)} times in {word}."
    expect = {"text": f"{letter} is {len(places)} times"}
    question = dress(rng, text.format(c=letter, w=word))
    return Item("spelling", f"find {letter} {word}", user(question), expect, reasoning, answer)


def spelling(rng, effort):
    word = rng.choice(ALL_WORDS) if rng.random() < 0.6 else pseudo_word(rng)
    letters = "-".join(word)
    kind = rng.choice(["spell", "spell", "backwards", "count", "first", "last", "find"])
    if kind == "find":
        return find_letter(rng, effort, word)
    counted = " ".join(f"{c}{i}" for i, c in enumerate(word, 1))
    if kind == "spell":
        text = rng.choice(
            [
                "Spell {w}.",
                "How do you spell {w}?",
                "Spell the word {w}.",
                'Spell "{w}".',
                "Give me the letters of {w}.",
            ]
        )
        answer, work = letters, letters
    elif kind == "backwards":
        text = rng.choice(
            [
                "Spell {w} backwards.",
                "Reverse the word {w}.",
                'Spell "{w}" from back to front.',
                "Write {w} backwards.",
            ]
        )
        answer, work = "-".join(reversed(word)), f"{letters}. Backwards: " + "-".join(
            reversed(word)
        )
    elif kind == "count":
        text = rng.choice(
            [
                "How many letters does {w} have?",
                "Count the letters of {w}.",
                'How long is the word "{w}"?',
            ]
        )
        answer, work = f"{word} has {len(word)} letters.", counted
    else:
        text = rng.choice(
            [
                f"What is the {kind} letter of {{w}}?",
                f"Which letter is the {kind} in {{w}}?",
                f"{kind.capitalize()} letter of {{w}}?",
            ]
        )
        value = word[0] if kind == "first" else word[-1]
        answer, work = f"The {kind} letter of {word} is {value}.", letters
    expect = {"number": len(word)} if kind == "count" else {"text": answer.rstrip(".")}
    reasoning = {
        "low": f"{letters}." if kind in ("backwards", "count") else f"Word {word}.",
        "medium": f"The word is {word}: {work}.",
        "high": f"The user asks about the word {word}. Its letters one by one: {counted}. Now the answer: {work}.",
    }[effort]
    return Item(
        "spelling",
        f"{kind} {word}",
        user(dress(rng, text.format(w=word))),
        expect,
        reasoning,
        answer,
    )
