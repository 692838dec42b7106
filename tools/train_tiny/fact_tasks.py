"""Facts of the built-in tables, and look-ups in a table that the user gives."""

import tables
from fact_wordings import WORDINGS
from item import Item, city, dress, join_and, noun, person, user


def _subjects():
    """Every subject of WORDINGS with its fields, table by table."""
    for row in tables.COUNTRIES:
        yield "country", dict(zip(("name", "capital", "continent", "currency", "language"), row))
    for row in tables.ELEMENTS:
        yield "element", dict(zip(("name", "symbol", "number"), row))
    for row in tables.ANIMALS:
        yield "animal", dict(zip(("name", "young", "group"), row))
    for index, (name, days) in enumerate(tables.MONTHS):
        after = tables.MONTHS[(index + 1) % 12][0]
        yield "month", {"name": name, "days": days, "number": str(index + 1), "after": after}
    for index, name in enumerate(tables.DAYS):
        after, before = tables.DAYS[(index + 1) % 7], tables.DAYS[index - 1]
        yield "day", {"name": name, "after": after, "before": before}
    lists = {
        "days of the week": tables.DAYS,
        "planets": tables.PLANETS,
        "months of the year": [name for name, _ in tables.MONTHS],
    }
    for name, things in lists.items():
        yield "list", {"name": name, "things": ", ".join(things)}
    for index, (name, word) in enumerate(zip(tables.PLANETS, tables.ORDINALS)):
        yield "planet", {"name": name, "word": word, "number": str(index + 1)}


def _fact_list():
    """[(questions, topic, row of the table, value, sentence)]"""
    facts = []
    for kind, fields in _subjects():
        row, wordings = WORDINGS[kind]
        for topic, value, sentence, questions in wordings:
            asked = [question.format(**fields) for question in questions]
            told = [text.format(**fields) for text in (topic, row, sentence)]
            facts.append((asked, told[0], told[1], fields[value], told[2]))
    return facts


FACTS = _fact_list()
SHORT_ANSWER = [
    "Answer with one word.",
    "Reply with the fact only.",
    "Give only the answer, no sentence.",
]


def plain_question(rng, question):
    """Some users ask without capitals, some with more words."""
    shape = rng.random()
    if shape < 0.12:
        question = question.lower().replace("what's", rng.choice(["what's", "whats"]))
        return question.rstrip("?.") if rng.random() < 0.5 else question
    if shape < 0.2 and question.startswith(("What is the ", "What's the ", "Name the ")):
        rest = question.split("the ", 1)[1].rstrip("?.")
        opening = [
            "Tell me the ",
            "I need the ",
            "Give me the ",
            "Do you know the ",
            "the ",
            "The ",
        ]
        return rng.choice(opening) + rest + rng.choice(["", ".", " please", ", please."])
    return dress(rng, question)


def facts(rng, effort):
    fact = rng.choice(FACTS)
    return fact_item(rng, effort, fact, plain_question(rng, rng.choice(fact[0])))


def fact_item(rng, effort, fact, question):
    _, topic, row, value, sentence = fact
    reasoning = {
        "low": f"{topic}.",
        "medium": f"The user asks: {topic}. My table says: {row}.",
        "high": f"The user asks: {topic}. I look for the row in my table. My table says: {row}. "
        f"The question is about one entry of this row. {topic}: {value}. So the answer is {value}.",
    }[effort]
    before = []
    if rng.random() < 0.12:
        before = [
            {"role": rng.choice(["system", "developer"]), "content": rng.choice(SHORT_ANSWER)}
        ]
        sentence = value
    return Item(
        "facts", "fact " + question, before + user(question), {"text": value}, reasoning, sentence
    )


# ---- look-ups in a table that the user gives ------------------------------------------------


def _column(rng):
    return rng.choice(
        [
            ("age", lambda: str(rng.randint(18, 90))),
            ("city", lambda: city(rng)),
            ("color", lambda: rng.choice(tables.COLORS)),
            ("team", lambda: rng.choice(tables.TEAMS)),
            ("price", lambda: str(rng.randint(2, 999))),
            ("score", lambda: str(rng.randint(0, 100))),
            ("room", lambda: str(rng.randint(100, 499))),
            ("pet", lambda: rng.choice(tables.ANIMALS)[0]),
        ]
    )


def lookup(rng, effort):
    columns = {}
    while len(columns) < rng.choice([1, 1, 2, 2, 3]):
        name, make = _column(rng)
        columns[name] = make
    make_key, kind = rng.choice([(person, "name"), (noun, "item"), (city, "place")])
    keys = list({make_key(rng): None for _ in range(rng.randint(3, 9))})
    rows = [[key] + [make() for make in columns.values()] for key in keys]
    shape = rng.randrange(4)
    if shape == 0:
        table = "\n".join(", ".join(row) for row in [[kind, *columns]] + rows)
    elif shape == 1:
        table = "\n".join(" | ".join(row) for row in [[kind, *columns]] + rows)
    elif shape == 2:
        table = "\n".join(
            f"{row[0]}: " + ", ".join(f"{c} {v}" for c, v in zip(columns, row[1:])) for row in rows
        )
    else:
        table = " ".join(
            f"{row[0]} has " + join_and([f"{c} {v}" for c, v in zip(columns, row[1:])]) + "."
            for row in rows
        )
    row, index = rng.choice(rows), rng.randrange(len(columns))
    column, value = list(columns)[index], row[1 + index]
    question = rng.choice(
        [
            "What is the {c} of {k}?",
            "Which {c} does {k} have?",
            "Tell me the {c} of {k}.",
            "{k}: what {c}?",
            "Find the {c} of {k}.",
            "Give me the {c} for {k}.",
        ]
    ).format(c=column, k=row[0])
    if rng.random() < 0.5:
        text = f"{table}\n\n{question}"
    else:
        text = f"{question}\n\n{table}"
    messages = user(
        rng.choice(["", "", "Here is a table.\n", "Look at this table:\n\n", "My list:\n"]) + text
    )
    if rng.random() < 0.2:
        messages = [{"role": "system", "content": "Use this table.\n\n" + table}] + user(question)
    reasoning = {
        "low": f"{column} of {row[0]}.",
        "medium": f"I need the {column} of {row[0]}. The row: {', '.join(row)}.",
        "high": f"The user gives a table of {len(rows)} rows with the columns {', '.join(columns)} and asks for the {column} of {row[0]}. "
        f"The row: {', '.join(row)}. The {column} is {value}.",
    }[effort]
    return Item(
        "lookup",
        text,
        messages,
        {"text": value},
        reasoning,
        f"The {column} of {row[0]} is {value}.",
    )
