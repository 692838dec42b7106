"""Facts of the built-in tables, and look-ups in a table that the user gives."""

import tables
from item import Item, city, dress, join_and, noun, person, user


def _fact_list():
    """(questions, short reasoning, row, value, sentence)"""
    facts = []

    def add(questions, topic, row, value, sentence):
        facts.append((questions, topic, row, value, sentence))

    for name, capital, continent, currency, language in tables.COUNTRIES:
        row = f"{name}: capital {capital}, continent {continent}, currency {currency}, language {language}"
        add(
            [
                f"What is the capital of {name}?",
                f"Which city is the capital of {name}?",
                f"Name the capital of {name}.",
                f"{name}'s capital?",
                f"Capital of {name}?",
                f"What's the capital city of {name}?",
                f"Do you know the capital of {name}?",
            ],
            f"Capital of {name}",
            row,
            capital,
            f"The capital of {name} is {capital}.",
        )
        add(
            [
                f"On which continent is {name}?",
                f"Which continent is {name} in?",
                f"What continent is {name} on?",
                f"Where is {name}?",
                f"In which part of the world is {name}?",
                f"Name the continent of {name}.",
            ],
            f"Continent of {name}",
            row,
            continent,
            f"{name} is in {continent}.",
        )
        add(
            [
                f"What is the currency of {name}?",
                f"Which currency does {name} use?",
                f"What money is used in {name}?",
                f"Name the currency of {name}.",
                f"Currency of {name}?",
                f"How do people pay in {name}?",
            ],
            f"Currency of {name}",
            row,
            currency,
            f"The currency of {name} is the {currency}.",
        )
        add(
            [
                f"Which language is spoken in {name}?",
                f"What language do people speak in {name}?",
                f"What is the language of {name}?",
                f"Language of {name}?",
                f"Name the main language of {name}.",
                f"What do people speak in {name}?",
            ],
            f"Language of {name}",
            row,
            language,
            f"People in {name} speak {language}.",
        )
        add(
            [
                f"{capital} is the capital of which country?",
                f"Which country has the capital {capital}?",
                f"What country is {capital} the capital of?",
                f"Of which country is {capital} the capital?",
                f"Where is {capital}?",
                f"In which country is {capital}?",
            ],
            f"Country of {capital}",
            row,
            name,
            f"{capital} is the capital of {name}.",
        )
    for name, symbol, number in tables.ELEMENTS:
        row = f"{name}: symbol {symbol}, atomic number {number}"
        add(
            [
                f"What is the chemical symbol of {name}?",
                f"What is the symbol for {name}?",
                f"Symbol of {name}?",
                f"Which symbol does {name} have?",
                f"How is {name} written in chemistry?",
                f"Name the symbol of the element {name}.",
            ],
            f"Symbol of {name}",
            row,
            symbol,
            f"The symbol of {name} is {symbol}.",
        )
        add(
            [
                f"What is the atomic number of {name}?",
                f"Which atomic number does {name} have?",
                f"Atomic number of {name}?",
                f"How many protons does {name} have?",
                f"Name the atomic number of {name}.",
            ],
            f"Atomic number of {name}",
            row,
            number,
            f"The atomic number of {name} is {number}.",
        )
        add(
            [
                f"Which element has the symbol {symbol}?",
                f"What element is {symbol}?",
                f"Name the element with the symbol {symbol}.",
                f"Which element has the atomic number {number}?",
                f"What is element number {number}?",
            ],
            f"Element {symbol} {number}",
            row,
            name,
            f"That element is {name}.",
        )
    for name, young, group in tables.ANIMALS:
        row = f"{name}: young {young}, group {group}"
        add(
            [
                f"What is a young {name} called?",
                f"What do you call a baby {name}?",
                f"Name the young of a {name}.",
                f"How is a baby {name} called?",
            ],
            f"Young of {name}",
            row,
            young,
            f"A young {name} is called {young}.",
        )
        add(
            [
                f"What kind of animal is a {name}?",
                f"Which group of animals does the {name} belong to?",
                f"Is a {name} a mammal, a bird or something else?",
            ],
            f"Group of {name}",
            row,
            group,
            f"A {name} is in the group: {group}.",
        )
    for index, (name, days) in enumerate(tables.MONTHS):
        after = tables.MONTHS[(index + 1) % 12][0]
        row = f"{name}: month {index + 1}, {days} days, then {after}"
        add(
            [
                f"How many days does {name} have?",
                f"How many days are in {name}?",
                f"How long is {name} in days?",
                f"Days in {name}?",
            ],
            f"Days of {name}",
            row,
            days,
            f"{name} has {days} days.",
        )
        add(
            [
                f"Which month comes after {name}?",
                f"What month follows {name}?",
                f"What is the month after {name}?",
            ],
            f"Month after {name}",
            row,
            after,
            f"{after} comes after {name}.",
        )
        add(
            [
                f"Which number does the month {name} have?",
                f"What number is {name} in the year?",
                f"{name} is which month of the year, as a number?",
            ],
            f"Number of {name}",
            row,
            str(index + 1),
            f"{name} is month {index + 1}.",
        )
    for index, name in enumerate(tables.DAYS):
        after, before = tables.DAYS[(index + 1) % 7], tables.DAYS[index - 1]
        row = f"{name}: after {before}, before {after}"
        add(
            [
                f"Which day comes after {name}?",
                f"What day follows {name}?",
                f"What is the day after {name}?",
            ],
            f"Day after {name}",
            row,
            after,
            f"{after} comes after {name}.",
        )
        add(
            [f"Which day comes before {name}?", f"What is the day before {name}?"],
            f"Day before {name}",
            row,
            before,
            f"{before} comes before {name}.",
        )
    lists = (("days of the week", tables.DAYS), ("planets", tables.PLANETS))
    lists += (("months of the year", [month for month, _ in tables.MONTHS]),)
    for name, things in lists:
        add(
            [
                f"Name the {name}.",
                f"List the {name}.",
                f"What are the {name}?",
                f"Tell me the {name}.",
            ],
            f"List of {name}",
            f"{name}: " + ", ".join(things),
            ", ".join(things),
            ", ".join(things) + ".",
        )
    for index, name in enumerate(tables.PLANETS):
        word = tables.ORDINALS[index]
        row = f"{name}: planet {index + 1} from the sun"
        add(
            [
                f"Which planet is the {word} from the sun?",
                f"What is the {word} planet?",
                f"Name the {word} planet of the solar system.",
            ],
            f"Planet {index + 1}",
            row,
            name,
            f"The {word} planet is {name}.",
        )
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
