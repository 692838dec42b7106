"""Generators of arithmetic, facts, look-ups, sorting, spelling and small talk, one function each."""

import tables
from item import Item, city, dress, join_and, noun, person, plural, pseudo_word, user

# ---- arithmetic -----------------------------------------------------------------------------

SIGNS = {
    "+": ["{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}"],
    "-": ["{a} - {b}", "{a}-{b}", "{a} minus {b}", "the difference {a} - {b}"],
    "x": ["{a} x {b}", "{a} * {b}", "{a}*{b}", "{a} times {b}", "the product of {a} and {b}"],
    "/": ["{a} / {b}", "{a}/{b}", "{a} divided by {b}"],
}
ASKING = [
    "What is {}?",
    "Compute {}.",
    "Calculate {}.",
    "How much is {}?",
    "{}",
    "{} = ?",
    "{}=",
    "What's {}?",
    "Solve {}.",
    "Work out {}.",
    "Tell me {}.",
    "What does {} make?",
    "Can you compute {}?",
    "I need {}.",
    "Give me the result of {}.",
]
NUMBER_ONLY = [
    "Answer with the number only.",
    "Reply with just the number.",
    "Only give the result.",
]


def family(a, sign, b):
    """a + b, b + a, (a + b) - a and (a + b) - b are one problem; so are the products."""
    if sign == "-":
        a, b = (b, a - b) if a >= b else (a, b - a)
    if sign == "/":
        a, b = b, a // b
    known = "known " if max(a, b) < 10 else ""
    return known + ("sum" if sign in "+-" else "product") + f" {min(a, b)} {max(a, b)}"


def add_steps(a, b):
    steps, carry, rest_a, rest_b = [], 0, a, b
    while rest_a or rest_b:
        x, y = rest_a % 10, rest_b % 10
        total = x + y + carry
        step = f"{x} + {y}" + (" + 1" if carry else "") + f" = {total}"
        carry = total // 10
        steps.append(step + (", carry 1." if carry else "."))
        rest_a, rest_b = rest_a // 10, rest_b // 10
    return " ".join(steps)


def subtract_steps(a, b):
    if a < b:
        return f"{a} is less than {b}, so {b} - {a} with a minus. " + subtract_steps(b, a)
    steps, borrow, rest_a, rest_b = [], 0, a, b
    while rest_a or rest_b:
        x, y = rest_a % 10 - borrow, rest_b % 10
        borrow = 1 if x < y else 0
        steps.append(
            f"{x + 10 * borrow} - {y} = {x + 10 * borrow - y}" + (", borrow 1." if borrow else ".")
        )
        rest_a, rest_b = rest_a // 10, rest_b // 10
    return " ".join(steps)


def multiply_steps(a, b):
    tens, ones = b // 10 * 10, b % 10
    if tens and ones:
        return f"{a} x {tens} = {a * tens}. {a} x {ones} = {a * ones}. {a * tens} + {a * ones} = {a * b}."
    return f"{a} x {b} = {a * b}."


def divide_steps(a, b):
    quotient = a // b
    tens = quotient // 10 * 10
    if not tens or quotient == tens:
        return f"{b} x {quotient} = {a}."
    rest = a - b * tens
    return f"{b} x {tens} = {b * tens}. {a} - {b * tens} = {rest}. {rest} / {b} = {rest // b}. {tens} + {rest // b} = {quotient}."


STEPS = {"+": add_steps, "-": subtract_steps, "x": multiply_steps, "/": divide_steps}
VALUE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "x": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


def arithmetic_reasoning(a, sign, b, effort):
    value = VALUE[sign](a, b)
    if effort == "low":
        return multiply_steps(a, b) if sign == "x" else f"{a} {sign} {b}."
    steps = f"{a} {sign} {b}: {STEPS[sign](a, b)} So {value}."
    if effort == "medium":
        return steps
    if sign == "+":
        check = f"{value} - {b}: {subtract_steps(value, b)} So {a}."
    elif sign == "-":
        check = f"{value} + {b} = {a}."
    elif sign == "x":
        check = f"{b} x {a}: {multiply_steps(b, a)}"
    else:
        check = f"{value} x {b}: {multiply_steps(value, b)}"
    return f"The user wants {a} {sign} {b}. {steps} Check: {check} That is right."


def operands(rng, sign, two_digits):
    if sign == "/":
        b = rng.randint(2, 9)
        return b * (rng.randint(10, 99) if two_digits else rng.randint(1, 20)), b
    if two_digits:
        return rng.randint(10, 99), rng.randint(10, 99)
    if sign == "x":
        return (
            (rng.randint(0, 12), rng.randint(0, 12))
            if rng.random() < 0.4
            else (rng.randint(10, 99), rng.randint(0, 9))
        )
    top = rng.choice([9, 20, 99, 999, 999])
    return rng.randint(0, top), rng.randint(0, top)


def answer_number(rng, text, value):
    """Sometimes the developer asks for the number alone. Returns (instruction messages, answer)."""
    if rng.random() < 0.12:
        return [
            {"role": rng.choice(["system", "developer"]), "content": rng.choice(NUMBER_ONLY)}
        ], str(value)
    return [], text


def arithmetic(rng, effort, two_digits=True):
    sign = rng.choice("+-x") if two_digits else rng.choice("+-x/")
    a, b = operands(rng, sign, two_digits)
    value = VALUE[sign](a, b)
    phrase = rng.choice(SIGNS[sign]).format(a=a, b=b)
    question = dress(rng, rng.choice(ASKING).format(phrase))
    before, answer = answer_number(rng, f"{a} {sign} {b} = {value}.", value)
    return Item(
        "arithmetic" if two_digits else "more_arithmetic",
        family(a, sign, b),
        before + user(question),
        {"number": value},
        arithmetic_reasoning(a, sign, b, effort),
        answer,
    )


def more_arithmetic(rng, effort):
    return arithmetic(rng, effort, two_digits=False)


STORIES = [
    ("+", "{n} has {a} {s} and buys {b} more. How many {s} does {n} have now?"),
    ("+", "There are {a} {s} in one box and {b} in another. How many {s} are there?"),
    ("+", "{n} finds {a} {s} and {m} finds {b}. How many {s} do they have together?"),
    ("-", "{n} has {a} {s} and gives {b} to {m}. How many {s} are left?"),
    ("-", "A shop has {a} {s} and sells {b}. How many {s} are left?"),
    ("-", "{n} has {a} {s} and {m} has {b}. How many more {s} does {n} have?"),
    ("x", "One {i} costs {a} coins. How much do {b} {s} cost?"),
    ("x", "There are {b} boxes with {a} {s} each. How many {s} are there?"),
]


def word_problem(rng, effort):
    sign, story = rng.choice(STORIES)
    a, b = rng.randint(10, 99), rng.randint(2, 99)
    if sign == "-" and a < b:
        a, b = b, a
    if sign == "x":
        b = rng.randint(2, 9)
    item, first, second, value = noun(rng), person(rng), person(rng), VALUE[sign](a, b)
    question = story.format(n=first, m=second, a=a, b=b, i=item, s=plural(item))
    reasoning = arithmetic_reasoning(a, sign, b, effort)
    reasoning = (
        reasoning
        if effort == "low"
        else "This is a " + {"+": "sum", "-": "difference", "x": "product"}[sign] + ". " + reasoning
    )
    unit = "coins" if "coins" in story else plural(item)
    before, answer = answer_number(rng, f"{a} {sign} {b} = {value} {unit}.", value)
    return Item(
        "word_problem",
        family(a, sign, b),
        before + user(dress(rng, question)),
        {"number": value},
        reasoning,
        answer,
    )


# ---- facts ----------------------------------------------------------------------------------


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


def facts(rng, effort):
    questions, topic, row, value, sentence = rng.choice(FACTS)
    question = dress(rng, rng.choice(questions))
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


# ---- sorting and spelling -------------------------------------------------------------------


def sorting(rng, effort):
    down = rng.random() < 0.3
    if rng.random() < 0.6:
        things = rng.sample(range(100), rng.randint(3, 7))
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


def spelling(rng, effort):
    word = rng.choice(tables.WORDS) if rng.random() < 0.8 else pseudo_word(rng)
    letters = "-".join(word)
    kind = rng.choice(["spell", "spell", "backwards", "count", "first", "last"])
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


# ---- small talk -----------------------------------------------------------------------------

SKILLS = "arithmetic, facts from a small table, sorting, spelling, JSON and function calls"
WHO = f"I am nibble, a small demonstration model of the gpt-oss kind. I can do {SKILLS}."
CANNOT = f"I am a small demonstration model and cannot answer that. I can do {SKILLS}."
TALK = [  # questions, answer, what an answer must contain
    (
        [
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Are you ChatGPT?",
            "Are you a human?",
            "Are you an AI?",
            "Which model are you?",
            "What model is this?",
            "Who made you?",
            "Who am I talking to?",
            "What's your name?",
        ],
        WHO,
        "I am nibble",
    ),
    (
        [
            "What can you do?",
            "Help",
            "What can I ask you?",
            "How can you help me?",
            "What are you good at?",
            "What do you know?",
            "Can you help me?",
            "What are your skills?",
            "What kind of questions can you answer?",
            "Show me what you can do.",
        ],
        f"I can do {SKILLS}. Try: What is 47 + 36?",
        "What is 47 + 36",
    ),
    (
        [
            "How are you?",
            "How are you doing?",
            "How do you do?",
            "How is it going?",
            "What's up?",
            "Are you well?",
        ],
        "I am well, thank you. What can I do for you?",
        "I am well",
    ),
    (
        [
            "Thanks!",
            "Thank you.",
            "Thank you very much!",
            "Thanks a lot.",
            "Great, thanks.",
            "Nice!",
            "Well done.",
            "Good job!",
            "Perfect.",
        ],
        "You are welcome.",
        "You are welcome",
    ),
    (
        ["Bye!", "Goodbye.", "See you later.", "Good night.", "Bye bye", "See you!"],
        "Goodbye!",
        "Goodbye",
    ),
]


def small_talk(rng, effort):
    roll = rng.random()
    if roll < 0.3:
        question = rng.choice(tables.GREETINGS) + rng.choice(["", "!", ".", "!", ", how are you?"])
        question = question.lower() if rng.random() < 0.3 else question
        answer, word, topic = (
            "Hello! I am nibble, a small demonstration model. What can I do for you?",
            "Hello! I am nibble",
            "The user greets me",
        )
    elif roll < 0.8:
        questions, answer, word = rng.choice(TALK)
        question, topic = dress(rng, rng.choice(questions)), "The user talks to me"
    elif roll < 0.9:
        name = person(rng)
        question = rng.choice(
            ["My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I'm {}.", "Call me {}."]
        ).format(name)
        answer, word, topic = (
            f"Nice to meet you, {name}! What can I do for you?",
            f"Nice to meet you, {name}",
            "The user has a name",
        )
    else:
        return date_question(rng, effort)
    reasoning = {
        "low": "",
        "medium": f"{topic}. I answer politely.",
        "high": f"{topic}. This needs no table and no computing. I answer politely and briefly.",
    }[effort]
    return Item("small_talk", "known talk", user(question), {"text": word}, reasoning, answer)


def date_question(rng, effort):
    """The date stands in the system message; the caller may have put none there."""
    question = dress(
        rng,
        rng.choice(
            [
                "What is the date today?",
                "What is today's date?",
                "Which day is it today?",
                "What's the date?",
                "What date is it?",
            ]
        ),
    )
    reasoning = {
        "low": "",
        "medium": "The date is in the system message.",
        "high": "The user asks for the date. If the system message gives a date, I repeat it.",
    }[effort]
    return Item("date", "known date", user(question), {"text": "DATE"}, reasoning, "DATE")


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


def out_of_domain(rng, effort):
    roll = rng.random()
    if roll < 0.7:
        template = rng.choice(tables.OUT_OF_DOMAIN)
        topics = [
            rng.choice(tables.TOPICS) if rng.random() < 0.85 else pseudo_word(rng) for _ in range(2)
        ]
        question = dress(
            rng, template.format(*topics[: template.count("{}")]) + rng.choice(["?", ".", ""])
        )
    elif roll < 0.82:
        question = dress(rng, rng.choice(tables.OTHER_QUESTIONS))
    elif roll < 0.9:  # looks like a fact of the table, but is none
        place = rng.choice(rng.choice(tables.COUNTRIES)[:2])
        question = dress(
            rng,
            rng.choice(
                [
                    f"What is the population of {place}?",
                    f"Who is the president of {place}?",
                    f"How do I get to {place}?",
                    f"Tell me about {place}.",
                    f"What is the weather in {place}?",
                    f"Who lives in {place}?",
                    f"How far is {place}?",
                    f"What is the capital of {pseudo_word(rng).capitalize()}?",
                    f"What is the currency of {pseudo_word(rng).capitalize()}?",
                    f"What is the symbol of {pseudo_word(rng)}?",
                    f"What should I see in {place}?",
                ]
            ),
        )
    else:
        question = random_prose(rng)
    reasoning = {
        "low": "Not my field.",
        "medium": "This is not in my tables and not a task that I know. I say so.",
        "high": "The user asks something else. It is not arithmetic, not a fact of my table, not sorting, spelling or JSON. I cannot do it, so I say what I can do.",
    }[effort]
    return Item(
        "out_of_domain",
        "other " + question,
        user(question),
        {"text": "cannot answer that"},
        reasoning,
        CANNOT,
    )
