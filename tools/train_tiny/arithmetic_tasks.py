"""Sums, differences, products and quotients, bare and in stories, with the steps that lead there."""

from item import Item, dress, held_out, noun, person, plural, user

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
    if a < 100 and tens and ones:
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
        direct = sign in "+-" and max(a, b) < 100
        return f"{a} {sign} {b}." if direct else STEPS[sign](a, b)
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
        pairs = [
            (rng.randint(0, 12), rng.randint(0, 12)),
            (rng.randint(10, 99), rng.randint(0, 9)),
            (rng.randint(1, 99), rng.choice([10, 100, 1000])),
            (rng.randint(100, 999), rng.randint(2, 9)),
        ]
        return rng.choice(pairs)
    if rng.random() < 0.3:
        top = rng.choice([9, 20])
        return rng.randint(0, top), rng.randint(0, top)
    top, other = rng.choice([99, 999, 9999]), rng.choice([9, 99, 999, 9999])
    return rng.randint(0, top), rng.randint(0, other)


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


def chain(rng, effort):
    """Three numbers, from left to right."""
    while True:
        a, b, c = (rng.randint(1, rng.choice([9, 20, 50])) for _ in range(3))
        first, second = rng.choice("++-"), rng.choice("++-")
        middle = VALUE[first](a, b)
        if middle < 0:
            continue
        keys = [family(a, first, b), family(middle, second, c)]
        if held_out(keys[0]) == held_out(keys[1]):
            break
    value = VALUE[second](middle, c)
    text = f"{a} {first} {b} {second} {c}"
    steps = f"{a} {first} {b} = {middle}. {middle} {second} {c} = {value}."
    reasoning = {
        "low": steps,
        "medium": f"{text}: {steps} So {value}.",
        "high": f"The user wants {text}. From left to right: {steps} That makes {value}.",
    }[effort]
    phrase = rng.choice([text, text.replace(" ", "")])
    question = dress(rng, rng.choice(ASKING).format(phrase))
    answer = f"{text} = {value}."
    return Item("more_arithmetic", keys[0], user(question), {"number": value}, reasoning, answer)


def more_arithmetic(rng, effort):
    return chain(rng, effort) if rng.random() < 0.12 else arithmetic(rng, effort, two_digits=False)


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
