"""Whole conversations: a task, its surroundings (developer message, tools, earlier turns), the text."""

import random

import arithmetic_tasks
import fact_tasks
import harmony
import json_tasks
import tables
import talk_tasks
import tool_tasks
import word_tasks
from item import Item, held_out, person, random_date, random_effort, random_prose, user

# task: (generator, share of the training conversations)
GENERATORS = {
    "arithmetic": (arithmetic_tasks.arithmetic, 16),
    "more_arithmetic": (arithmetic_tasks.more_arithmetic, 10),
    "word_problem": (arithmetic_tasks.word_problem, 6),
    "facts": (fact_tasks.facts, 11),
    "lookup": (fact_tasks.lookup, 9),
    "sorting": (word_tasks.sorting, 10),
    "spelling": (word_tasks.spelling, 8),
    "json": (json_tasks.json_answer, 9),
    "call": (tool_tasks.call, 13),
    "tool_answer": (tool_tasks.tool_answer, 6),
    "small_talk": (talk_tasks.small_talk, 5),
    "out_of_domain": (talk_tasks.out_of_domain, 7),
}
FOLLOW_UPS = {
    "+": ["Now add {b}.", "Add {b} to that.", "Plus {b}?", "And plus {b}?"],
    "-": ["Now subtract {b}.", "Take away {b}.", "Minus {b}?", "And minus {b}?"],
    "x": ["Multiply that by {b}.", "Times {b}?", "Now times {b}."],
}


def _plain_turn(rng, names=GENERATORS):
    """A finished earlier turn without tools: (user text, answer)."""
    while True:
        item = names[rng.choice(sorted(names))][0](rng, "low")
        if (
            len(item.messages) == 1
            and item.answer
            and not item.tools
            and item.task != "date"
            and not held_out(item.key)
        ):
            return item.messages[0]["content"], item.answer


def _turn(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def second_fact(rng, effort):
    """What is the capital of France? ... And of Peru?"""
    column, name = rng.choice([(1, "capital"), (3, "currency"), (4, "language"), (2, "continent")])
    before, after = rng.sample(tables.COUNTRIES, 2)
    facts = [
        f
        for f in fact_tasks.FACTS
        if f[1] in (f"{name.capitalize()} of {c[0]}" for c in (before, after))
    ]
    first = next(f for f in facts if f[1].endswith(" " + before[0]))
    second = next(f for f in facts if f[1].endswith(" " + after[0]))
    question = rng.choice(
        ["And of {}?", "And {}?", "What about {}?", "And for {}?", "The same for {}?", "and {}?"]
    )
    item = fact_tasks.fact_item(rng, effort, second, question.format(after[0]))
    item.task, item.key = "follow_up", f"and {name} {before[0]} {after[0]}"
    item.messages = _turn(rng.choice(first[0]), first[4]) + item.messages[-1:]
    item.answer, item.expect = second[4], {"text": second[3]}
    return item


def follow_up(rng, effort):
    """The second question of a chat about one number, or about the user's name."""
    if rng.random() < 0.35:
        name = person(rng)
        say = rng.choice(
            ["My name is {}.", "I am {}.", "Hello, my name is {}.", "Call me {}.", "my name is {}"]
        ).format(name)
        messages = _turn(say, f"Nice to meet you, {name}! What can I do for you?")
        for _ in range(rng.randint(0, 2)):
            messages += _turn(*_plain_turn(rng))
        question = rng.choice(
            ["What is my name?", "Who am I?", "Do you remember my name?", "What's my name?"]
        )
        reasoning = {
            "low": "",
            "medium": f"The user said: {name}.",
            "high": f"The user asks for the name. Earlier in this chat the user said: {name}. I repeat it.",
        }[effort]
        return Item(
            "follow_up",
            f"name {name} {question}",
            messages + user(question),
            {"text": name},
            reasoning,
            f"Your name is {name}.",
        )
    if rng.random() < 0.25:
        return second_fact(rng, effort)
    while True:
        first = arithmetic_tasks.arithmetic(rng, "low", two_digits=rng.random() < 0.7)
        value = first.expect["number"]
        if len(first.messages) == 1 and 0 <= value < 1000 and not held_out(first.key):
            break
    sign = rng.choice("+-x" if value < 100 else "+-")
    b = rng.randint(2, 9) if sign == "x" else rng.randint(1, 99)
    question = rng.choice(FOLLOW_UPS[sign]).format(b=b)
    if value < 500 and rng.random() < 0.15:
        sign, b, question = (
            "x",
            2,
            rng.choice(["Double it.", "Double that.", "now double it", "Twice that?"]),
        )
    messages = _turn(first.messages[0]["content"], first.answer)
    messages += user(question)
    result = arithmetic_tasks.VALUE[sign](value, b)
    return Item(
        "follow_up",
        arithmetic_tasks.family(value, sign, b),
        messages,
        {"number": result},
        arithmetic_tasks.arithmetic_reasoning(value, sign, b, effort),
        f"{value} {sign} {b} = {result}.",
    )


GENERATORS["follow_up"] = (follow_up, 6)
NAMES = list(GENERATORS)
SHARES = [share for _, share in GENERATORS.values()]


def surround(rng, item):
    """Date, developer message, tools that are not needed, earlier turns."""
    item.date = random_date(rng) if rng.random() < 0.85 else ""
    if item.task == "date":
        value, answer = item.date, f"Today is {item.date}."
        if item.answer == "YEAR":
            value, answer = item.date[:4], f"It is {item.date[:4]}."
        item.answer = answer if item.date else "I do not know the date of today."
        item.expect = {"text": value or "do not know"}
    has_developer = item.messages[0]["role"] in ("system", "developer")
    if not has_developer and rng.random() < 0.3:
        parts = rng.sample(tables.FILLER_INSTRUCTIONS, rng.choice([1, 1, 2, 3]))
        text = random_prose(rng) if rng.random() < 0.1 else " ".join(parts)
        item.messages = [
            {"role": rng.choice(["system", "developer"]), "content": text}
        ] + item.messages
        has_developer = True
    if not item.tools and item.task != "follow_up" and rng.random() < 0.12:
        made_up = 1 if item.task in ("out_of_domain", "date") else 0.25
        item.tools = tool_tasks.toolset(rng, made_up=made_up)[0]
    if item.task not in ("follow_up", "tool_answer") and rng.random() < 0.25:
        history = []
        for _ in range(rng.randint(1, 3)):
            history += _turn(*_plain_turn(rng))
        cut = 1 if has_developer else 0
        item.messages = item.messages[:cut] + history + item.messages[cut:]
    return item


def make(rng, task, effort, want_held_out):
    while True:
        item = GENERATORS[task][0](rng, effort)
        if (
            held_out(item.key) == want_held_out or task == "small_talk"
        ):  # whose wordings are all known
            item.effort = effort
            return surround(rng, item)


def training_pieces(rng, chat=harmony):
    """One training conversation as [(text, loss weight)], in a chat format."""
    item = make(rng, rng.choices(NAMES, SHARES)[0], random_effort(rng), False)
    of_prompt, of_target = chat.training_options(rng)
    pieces = chat.render_prompt(item.messages, item.tools, item.effort, item.date, **of_prompt)
    return pieces + [(chat.render_target(item.reasoning, item.answer, item.call, **of_target), 1.0)]


def held_out_items(task, count, seed):
    """Different unseen items of one task, the efforts in turn."""
    rng, seen, items = random.Random(f"held out {task} {seed}"), set(), []
    while len(items) < count:
        item = make(rng, task, ("low", "medium", "high")[len(items) % 3], True)
        if str(item.messages) not in seen:
            seen.add(str(item.messages))
            items.append(item)
    return items
