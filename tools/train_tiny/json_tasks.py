"""Answers in JSON."""

import json

import tables
from item import Item, city, dress, join_and, noun, person, pseudo_word, random_date, user


def _fields(rng):
    makers = {
        "name": lambda: person(rng),
        "age": lambda: rng.randint(1, 99),
        "city": lambda: city(rng),
        "color": lambda: rng.choice(tables.COLORS),
        "item": lambda: noun(rng),
        "price": lambda: rng.randint(1, 999),
        "quantity": lambda: rng.randint(1, 50),
        "team": lambda: rng.choice(tables.TEAMS),
        "id": lambda: rng.randint(100, 9999),
        "active": lambda: rng.random() < 0.5,
        "date": lambda: random_date(rng),
        "room": lambda: rng.randint(1, 400),
        "tags": lambda: rng.sample(tables.COLORS + tables.ITEMS, rng.randint(1, 3)),
        pseudo_word(rng): lambda: rng.randint(0, 99),
        pseudo_word(rng) + "_id": lambda: pseudo_word(rng),
    }
    names = rng.sample(sorted(makers), rng.randint(1, 5))
    if rng.random() < 0.15:
        names = ["name", "age"] + (["city"] if rng.random() < 0.5 else [])
    return {name: makers[name]() for name in names}


def _spoken(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return join_and(value) if isinstance(value, list) else str(value)


def _array_request(rng):
    things = rng.sample(tables.ITEMS + tables.COLORS + tables.NAMES, rng.randint(2, 5))
    text = rng.choice(
        [
            "Write a JSON array of {}.",
            "Give me these words as a JSON list: {}.",
            "Make a JSON array: {}.",
        ]
    )
    return user(dress(rng, text.format(join_and(things)))), things


def _sum_request(rng):
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    key = rng.choice(["result", "answer", "sum", "value"])
    text = rng.choice(
        [
            "What is {a} + {b}? Answer in JSON with the key {k}.",
            'Add {a} and {b}. Reply as JSON: {{"{k}": number}}.',
        ]
    )
    return user(text.format(a=a, b=b, k=key)), {key: a + b}


def _country_request(rng):
    name, capital, continent, currency, language = rng.choice(tables.COUNTRIES)
    row = {
        "country": name,
        "capital": capital,
        "continent": continent,
        "currency": currency,
        "language": language,
    }
    keys = rng.sample(sorted(row), rng.randint(2, 4))
    text = rng.choice(
        [
            "Describe {n} in JSON with the keys {k}.",
            "Give me {n} as JSON with {k}.",
            "JSON for {n} with the keys {k}, please.",
        ]
    )
    return user(text.format(n=name, k=join_and(keys))), {key: row[key] for key in keys}


def _people_request(rng):
    rows = [{"name": person(rng), "age": rng.randint(1, 99)} for _ in range(rng.randint(2, 3))]
    text = "; ".join(f"{r['name']}, {r['age']}" for r in rows)
    ask = rng.choice(
        [
            "Make a JSON array of objects with name and age: {}.",
            "These people as a JSON list with name and age: {}.",
        ]
    )
    return user(dress(rng, ask.format(text))), rows


def _person_request(rng, fields):
    """fields: name, age and perhaps city."""
    lives = f" and lives in {fields['city']}" if "city" in fields else ""
    text = rng.choice(
        [
            "JSON for a person called {n} who is {a}{l}.",
            "Write JSON for {n} who is {a} years old{l}. Keys: {k}.",
            "{n} is {a} years old{l}. Answer in JSON with the keys {k}.",
            "Give me JSON with {k}: {n} is {a}{l}.",
        ]
    )
    keys = join_and(list(fields))
    return user(text.format(n=fields["name"], a=fields["age"], l=lives, k=keys)), fields


def _object_wordings(pairs):
    """The ways to ask for an object of these (key, value) pairs."""
    lines = [f"{k}: {_spoken(v)}" for k, v in pairs]
    keys, values = join_and([k for k, _ in pairs]), "; ".join(_spoken(v) for _, v in pairs)
    equations = [f"{k} = {_spoken(v)}" for k, v in pairs]
    has_list = any(isinstance(v, list) for _, v in pairs)
    return [
        "Write a JSON object with " + join_and([f"{k} {_spoken(v)}" for k, v in pairs]) + ".",
        "Turn this into JSON: " + "; ".join(lines),
        "Make JSON from this:\n" + "\n".join(lines),
        f"Give me JSON with the keys {keys} and the values {values}.",
        "Answer in JSON. " + " ".join(f"The {k} is {_spoken(v)}." for k, v in pairs),
        "As JSON: " + "; ".join(equations) if has_list else "JSON please: " + ", ".join(equations),
    ]


def _object_request(rng):
    fields = _fields(rng)
    pairs = list(fields.items())
    ask = rng.choice(_object_wordings(pairs))
    if set(fields) >= {"name", "age"} and rng.random() < 0.5:
        return _person_request(rng, {k: fields[k] for k in ("name", "age", "city") if k in fields})
    if rng.random() < 0.06:
        ask = rng.choice(
            ["Return this JSON: {}", "Repeat this JSON: {}", "Echo {}", "Return JSON: {}"]
        )
        return user(ask.format(json.dumps(fields))), fields
    if rng.random() < 0.2:
        bare = "; ".join(f"{k}: {_spoken(v)}" for k, v in pairs)
        rule = rng.choice(
            [
                "Always answer in JSON.",
                "Reply with a JSON object only.",
                "Your output must be valid JSON.",
            ]
        )
        return [{"role": "system", "content": rule}] + user(bare), fields
    return user(ask), fields


def _json_request(rng):
    """Returns (messages, value)."""
    roll = rng.random()
    if roll < 0.12:
        return _array_request(rng)
    if roll < 0.24:
        return _sum_request(rng)
    if roll < 0.34:
        return _country_request(rng)
    if roll < 0.46:
        return _people_request(rng)
    return _object_request(rng)


def json_answer(rng, effort):
    messages, value = _json_request(rng)
    text = json.dumps(value)
    if isinstance(value, dict):
        plan = f"a JSON object with the keys {join_and(list(value))}"
        high = " ".join(f"{k} is {_spoken(v)}." for k, v in value.items())
    else:
        plan, high = f"a JSON array of {len(value)}", " ".join(
            f"{i}: {_spoken(v) if not isinstance(v, dict) else v['name']}."
            for i, v in enumerate(value, 1)
        )
    reasoning = {
        "low": "JSON.",
        "medium": f"I write {plan}.",
        "high": f"The user wants {plan}. {high} Only JSON, no other text.",
    }[effort]
    return Item(
        "json", "json " + messages[-1]["content"], messages, {"json": value}, reasoning, text
    )
