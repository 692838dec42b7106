"""Generators of JSON answers, function calls and answers to function results."""

import json

import tables
from item import Item, city, dress, join_and, noun, person, pseudo_word, random_date, user

# ---- JSON answers ---------------------------------------------------------------------------


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
    return {name: makers[name]() for name in names}


def _spoken(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return join_and(value) if isinstance(value, list) else str(value)


def _json_request(rng):
    """Returns (messages, value)."""
    roll = rng.random()
    if roll < 0.12:
        things = rng.sample(tables.ITEMS + tables.COLORS + tables.NAMES, rng.randint(2, 5))
        text = rng.choice(
            [
                "Write a JSON array of {}.",
                "Give me these words as a JSON list: {}.",
                "Make a JSON array: {}.",
            ]
        )
        return user(dress(rng, text.format(join_and(things)))), things
    if roll < 0.24:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        key = rng.choice(["result", "answer", "sum", "value"])
        text = rng.choice(
            [
                "What is {a} + {b}? Answer in JSON with the key {k}.",
                'Add {a} and {b}. Reply as JSON: {{"{k}": number}}.',
            ]
        )
        return user(text.format(a=a, b=b, k=key)), {key: a + b}
    if roll < 0.34:
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
    if roll < 0.46:
        rows = [{"name": person(rng), "age": rng.randint(1, 99)} for _ in range(rng.randint(2, 3))]
        text = "; ".join(f"{r['name']}, {r['age']}" for r in rows)
        ask = rng.choice(
            [
                "Make a JSON array of objects with name and age: {}.",
                "These people as a JSON list with name and age: {}.",
            ]
        )
        return user(dress(rng, ask.format(text))), rows
    fields = _fields(rng)
    pairs = list(fields.items())
    ask = rng.choice(
        [
            "Write a JSON object with " + join_and([f"{k} {_spoken(v)}" for k, v in pairs]) + ".",
            "Turn this into JSON: " + "; ".join(f"{k}: {_spoken(v)}" for k, v in pairs),
            "Make JSON from this:\n" + "\n".join(f"{k}: {_spoken(v)}" for k, v in pairs),
            "Give me JSON with the keys "
            + join_and([k for k, _ in pairs])
            + " and the values "
            + "; ".join(_spoken(v) for _, v in pairs)
            + ".",
            "Answer in JSON. " + " ".join(f"The {k} is {_spoken(v)}." for k, v in pairs),
            (
                "JSON please: "
                + ", ".join(f"{k} = {_spoken(v)}" for k, v in pairs if not isinstance(v, list))
                if not any(isinstance(v, list) for _, v in pairs)
                else "As JSON: " + "; ".join(f"{k} = {_spoken(v)}" for k, v in pairs)
            ),
        ]
    )
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


# ---- functions ------------------------------------------------------------------------------
# A tool: names, descriptions, parameters (kind, names, required, description), questions, result.
# Kinds make a value; {0}, {1} in a question are the first and second parameter.


def _kinds(rng):
    return {
        "city": lambda: city(rng),
        "person": lambda: person(rng),
        "item": lambda: noun(rng),
        "word": lambda: rng.choice(tables.WORDS),
        "room": lambda: rng.choice(tables.ROOMS),
        "minutes": lambda: rng.randint(1, 90),
        "amount": lambda: rng.randint(1, 999),
        "number": lambda: rng.randint(0, 999),
        "degrees": lambda: rng.randint(10, 30),
        "people": lambda: rng.randint(1, 12),
        "date": lambda: random_date(rng),
        "time": lambda: f"{rng.randint(0, 23):02d}:{rng.choice(['00', '15', '30', '45'])}",
        "code": lambda: rng.choice("ABCDEFGHKLMNPRSTXZ")
        + rng.choice(["", rng.choice("ABCDEFX")])
        + str(rng.randint(1, 9999)),
        "currency": lambda: rng.choice(
            ["euro", "dollar", "yen", "peso", "krona", "franc", "rupee"]
        ),
        "language": lambda: rng.choice(
            ["French", "German", "Spanish", "Italian", "Polish", "Greek", "Arabic"]
        ),
        "team": lambda: rng.choice(tables.TEAMS),
        "country": lambda: rng.choice(tables.COUNTRIES)[0],
        "made_up": lambda: pseudo_word(rng),
        "color": lambda: rng.choice(tables.COLORS),
    }


NUMERIC = {"minutes", "amount", "number", "degrees", "people"}
TOOLS = [
    (
        ["get_weather", "weather", "get_current_weather", "weather_now"],
        [
            "Get the weather of a city.",
            "Current weather for a place.",
            "Look up the weather",
            "Get the current weather in a given location",
        ],
        [("city", ["city", "location", "location", "place"], "Name of the city")],
        [
            "What's the weather in {0}?",
            "What's the weather like in {0}?",
            "What is the weather like in {0} today?",
            "How warm is it in {0}?",
            "What is the weather in {0}?",
            "How is the weather in {0} today?",
            "Is it raining in {0}?",
            "Weather in {0}, please.",
            "Do I need an umbrella in {0}?",
        ],
        {"temperature": "degrees", "sky": ["sunny", "cloudy", "rain", "snow", "fog"]},
    ),
    (
        ["get_stock", "stock_level", "check_stock"],
        ["Look up stock.", "How many pieces of an article are in stock."],
        [("code", ["sku", "article", "part_number"], "Article number")],
        [
            "How many {0} are in stock?",
            "How many {0} do we have?",
            "Check the stock of {0}.",
            "Is {0} in stock?",
        ],
        {"count": "number"},
    ),
    (
        ["set_timer", "start_timer", "timer"],
        ["Start a timer.", "Set a kitchen timer."],
        [("minutes", ["minutes", "duration"], "Minutes to wait")],
        [
            "Set a timer for {0} minutes.",
            "Start a {0} minute timer.",
            "Wake me in {0} minutes.",
            "Timer: {0} minutes.",
        ],
        {"status": ["started", "ok"]},
    ),
    (
        ["convert_currency", "exchange", "convert_money"],
        ["Convert an amount of money.", "Exchange rates."],
        [
            ("amount", ["amount", "value"], None),
            ("currency", ["from_currency", "source"], None),
            ("currency", ["to_currency", "target"], None),
        ],
        [
            "Convert {0} {1} to {2}.",
            "How much is {0} {1} in {2}?",
            "Change {0} {1} into {2}.",
            "What are {0} {1} in {2}?",
        ],
        {"amount": "amount"},
    ),
    (
        ["send_message", "send_text", "message_person"],
        ["Send a short message.", "Send text to a person."],
        [
            ("person", ["to", "recipient", "name"], "Who gets it"),
            ("word", ["text", "message", "body"], None),
        ],
        ["Send {0} the message {1}.", "Tell {0}: {1}", "Write {1} to {0}.", "Message {0}: {1}"],
        {"status": ["sent", "ok", "failed"]},
    ),
    (
        ["turn_on_light", "light_on", "switch_light"],
        ["Turn on the light of a room.", "Switch on a lamp."],
        [("room", ["room", "where"], "Which room")],
        [
            "Turn on the light in the {0}.",
            "It is dark in the {0}.",
            "Light in the {0}, please.",
            "Switch on the {0} light.",
        ],
        {"status": ["on", "ok", "broken"]},
    ),
    (
        ["set_temperature", "set_heating", "heat_room"],
        ["Set the temperature of a room.", "Control the heating."],
        [
            ("room", ["room", "zone"], None),
            ("degrees", ["degrees", "temperature", "target"], "Degrees celsius"),
        ],
        [
            "Set the {0} to {1} degrees.",
            "Heat the {0} to {1} degrees.",
            "I want {1} degrees in the {0}.",
        ],
        {"status": ["ok", "set"]},
    ),
    (
        ["book_table", "reserve_table", "make_reservation"],
        ["Book a table in a restaurant.", "Reserve a table."],
        [
            ("people", ["people", "guests", "party_size"], None),
            ("date", ["date", "day"], "YYYY-MM-DD"),
            ("time", ["time", "at"], "HH:MM"),
        ],
        [
            "Book a table for {0} on {1} at {2}.",
            "Reserve a table on {1} at {2} for {0} people.",
            "Table for {0}, {1}, {2}.",
        ],
        {"reservation": "number"},
    ),
    (
        ["get_time", "current_time", "local_time"],
        ["Get the local time of a city.", "What time it is in a place."],
        [("city", ["city", "location", "timezone"], None)],
        [
            "What time is it in {0}?",
            "Local time in {0}?",
            "How late is it in {0}?",
            "Tell me the time in {0}.",
        ],
        {"time": "time"},
    ),
    (
        ["find_flight", "search_flights", "flights"],
        ["Search flights.", "Find a flight between two cities."],
        [
            ("city", ["from", "origin", "departure"], None),
            ("city", ["to", "destination", "arrival"], None),
            ("date", ["date", "day"], None),
        ],
        [
            "Find a flight from {0} to {1} on {2}.",
            "I want to fly from {0} to {1} on {2}.",
            "Flights {0} to {1} on {2}?",
        ],
        {"flight": "code", "price": "amount"},
    ),
    (
        ["get_price", "price_of", "lookup_price"],
        ["Get the price of an item.", "Price list of the shop."],
        [("item", ["item", "product", "name"], None)],
        [
            "What does a {0} cost?",
            "How much is a {0}?",
            "Price of a {0}?",
            "Look up the price of the {0}.",
        ],
        {"price": "amount"},
    ),
    (
        ["order_item", "place_order", "buy"],
        ["Order an item.", "Buy something from the shop."],
        [
            ("item", ["item", "product"], None),
            ("people", ["quantity", "count", "amount"], "How many"),
        ],
        [
            "Order {1} pieces of {0}.",
            "Buy {1} of the {0}.",
            "I need {1} of {0}, order them.",
            "Please order {0}, quantity {1}.",
        ],
        {"order_id": "number"},
    ),
    (
        ["translate", "translate_word", "translate_text"],
        ["Translate a word.", "Translate text into another language."],
        [
            ("word", ["text", "word"], None),
            ("language", ["language", "to", "target_language"], None),
        ],
        ["Translate {0} into {1}.", "What is {0} in {1}?", "How do you say {0} in {1}?"],
        {"translation": "made_up"},
    ),
    (
        ["track_package", "package_status", "where_is_package"],
        ["Track a package.", "Where a package is."],
        [("code", ["id", "package_id", "number"], "Package number")],
        [
            "Where is my package {0}?",
            "Track package {0}.",
            "Status of package {0}?",
            "When does {0} arrive?",
        ],
        {"city": "city", "status": ["moving", "delivered", "waiting"]},
    ),
    (
        ["find_person", "lookup_employee", "find_contact"],
        ["Find a person in the directory.", "Look up an employee."],
        [("person", ["name", "person"], None)],
        [
            "Which team is {0} in?",
            "Find {0} in the directory.",
            "Where does {0} work?",
            "Look up {0}.",
        ],
        {"team": "team", "room": "number"},
    ),
    (
        ["create_event", "add_event", "schedule_meeting"],
        ["Create a calendar event.", "Add a meeting to the calendar."],
        [
            ("word", ["title", "subject"], None),
            ("date", ["date", "day"], None),
            ("time", ["time", "start"], None),
        ],
        [
            "Create an event {0} on {1} at {2}.",
            "Schedule {0} for {1} at {2}.",
            "Put {0} in my calendar on {1}, {2}.",
        ],
        {"event_id": "number"},
    ),
    (
        ["population", "get_population"],
        ["Population of a country.", "How many people live in a country."],
        [("country", ["country", "name"], None)],
        ["How many people live in {0}?", "Population of {0}?", "What is the population of {0}?"],
        {"population": "number"},
    ),
    (
        ["roll_dice", "random_number"],
        ["A random number.", "Roll a die with so many sides."],
        [("number", ["sides", "max", "limit"], None)],
        [
            "Roll a die with {0} sides.",
            "Give me a random number up to {0}.",
            "Random number, at most {0}.",
        ],
        {"value": "number"},
    ),
    (
        ["ping", "health", "check_status"],
        ["Ping.", "Check that the system is up."],
        [],
        [
            "Is the system up?",
            "Ping the server.",
            "Check the status of the system.",
            "Is everything running?",
        ],
        {"status": ["up", "down", "ok"]},
    ),
    (
        ["list_files", "read_folder"],
        ["List the files of a folder.", "Names of files in a folder."],
        [("made_up", ["folder", "path", "directory"], None)],
        ["Which files are in {0}?", "List the files of {0}.", "Show the folder {0}."],
        {"files": "number"},
    ),
]
OPTIONAL = [
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}),
    ("limit", {"type": "integer", "default": 5}),
    ("verbose", {"type": "boolean"}),
    ("warehouse", {"type": "string", "enum": ["east", "west"]}),
    ("note", {"type": "string"}),
]
VERBS = "get set find add remove update count check make send load open read start stop".split()


def _schema_of(kind, description):
    schema = {"type": "integer" if kind in NUMERIC else "string"}
    return {**schema, "description": description} if description else schema


def _made_up_tool(rng):
    """A function that no list holds: the request spells its arguments out."""
    name = (
        rng.choice(VERBS)
        + "_"
        + (pseudo_word(rng) if rng.random() < 0.5 else rng.choice(tables.WORDS))
    )
    kinds = ["word", "number", "made_up", "person", "city", "color", "code"]
    parameters = []
    for _ in range(rng.randint(0, 3)):
        key = rng.choice(
            [
                pseudo_word(rng),
                rng.choice(tables.WORDS),
                "name",
                "id",
                "value",
                "size",
                "query",
                "key",
            ]
        )
        if key not in [p[1][0] for p in parameters]:
            parameters.append((rng.choice(kinds), [key], None))
    spoken = (
        join_and([f"{p[1][0]} {{{i}}}" for i, p in enumerate(parameters)]) if parameters else ""
    )
    equals = ", ".join(f"{p[1][0]} = {{{i}}}" for i, p in enumerate(parameters))
    action = name.replace("_", " ")
    questions = [
        f"Use {name}" + (f" with {spoken}" if spoken else "") + ".",
        f"Call {name}" + (f" with {equals}" if equals else "") + ".",
        f"{action.capitalize()}" + (f": {equals}" if equals else "") + ".",
        f"Please {action}" + (f" with {spoken}" if spoken else "") + ".",
    ]
    result = {
        rng.choice(["value", "result", "count", "status", pseudo_word(rng)]): rng.choice(
            ["number", "word", "made_up"]
        )
    }
    return (
        [name],
        [
            f"{action.capitalize()}.",
            f"Function to {action}.",
            pseudo_word(rng).capitalize() + " tool.",
        ],
        parameters,
        questions,
        result,
    )


def _build(rng, spec):
    """Returns (tool, parameter names, spec) with one of the spec's names, descriptions and keys."""
    names, descriptions, parameters, _, _ = spec
    keys, properties, required = [], {}, []
    for kind, choices, description in parameters:
        key = rng.choice([c for c in choices if c not in keys])
        keys.append(key)
        properties[key] = _schema_of(kind, description if rng.random() < 0.6 else None)
        required.append(key)
    if rng.random() < 0.3:
        name, schema = rng.choice(OPTIONAL)
        properties.setdefault(name, schema)
    function = {"name": rng.choice(names)}
    if rng.random() < 0.9:
        function["description"] = rng.choice(descriptions)
    if properties or rng.random() < 0.3:
        function["parameters"] = {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
        }
    return {"type": "function", "function": function}, keys


def toolset(rng, first=None, made_up=0.25):
    """Some different tools in random order; returns (tools, specs, keys) in that order."""
    specs = [first] if first else []
    while len(specs) < rng.choice([1, 1, 2, 2, 3, 4]):
        spec = _made_up_tool(rng) if rng.random() < made_up else rng.choice(TOOLS)
        if not any(spec[0] == other[0] for other in specs):
            specs.append(spec)
    rng.shuffle(specs)
    built = [_build(rng, spec) for spec in specs]
    return [tool for tool, _ in built], specs, [keys for _, keys in built]


def _request(rng):
    spec = rng.choice(TOOLS) if rng.random() < 0.7 else _made_up_tool(rng)
    tools, specs, all_keys = toolset(rng, spec)
    index = next(i for i, s in enumerate(specs) if s is spec)
    kinds, keys = _kinds(rng), all_keys[index]
    values = [kinds[kind]() for kind, _, _ in spec[2]]
    question = rng.choice(spec[3]).format(*values)
    question = dress(rng, question) if "{" not in question else question
    arguments = dict(zip(keys, values))
    return tools, tools[index]["function"]["name"], spec, question, arguments


def _call_reasoning(name, arguments, effort, tools):
    if effort == "low":
        return f"Call {name}."
    given = " ".join(f"{k}: {v}." for k, v in arguments.items()) or "No arguments."
    if effort == "medium":
        return f"I need {name}. {given}"
    names = join_and([t["function"]["name"] for t in tools])
    return f"The user asks for something that a function can do. There are the functions {names}. The right one is {name}. Its arguments are: {given} I call it."


def call(rng, effort):
    tools, name, _, question, arguments = _request(rng)
    made = {"name": name, "arguments": json.dumps(arguments)}
    return Item(
        "call",
        f"call {name} {json.dumps(arguments)}",
        user(question),
        {"call": {"name": name, "arguments": arguments}},
        _call_reasoning(name, arguments, effort, tools),
        call=made,
        tools=tools,
    )


def tool_answer(rng, effort):
    """The function has answered: say so in words."""
    tools, name, spec, question, arguments = _request(rng)
    kinds, result = _kinds(rng), {}
    for key, kind in spec[4].items():
        result[key] = rng.choice(kind) if isinstance(kind, list) else kinds[kind]()
    messages = user(question) + [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
    ]
    if rng.random() < 0.6:
        messages[1]["reasoning"] = _call_reasoning(name, arguments, effort, tools)
    if rng.random() < 0.1:  # a result that is no JSON
        plain = rng.choice([pseudo_word(rng), str(rng.randint(0, 999)), "error: not found", "done"])
        messages[2]["content"], result = plain, {"result": plain}
    facts = join_and([f"{key.replace('_', ' ')} is {value}" for key, value in result.items()])
    reasoning = {
        "low": "Report the result.",
        "medium": f"{name} says: {facts}.",
        "high": f"The function {name} has answered. Its result says: {facts}. No other call is needed. I tell the user in words.",
    }[effort]
    return Item(
        "tool_answer",
        f"result {question} {messages[2]['content']}",
        messages,
        {"values": [str(v) for v in result.values()]},
        reasoning,
        f"The {facts}.",
        tools=tools,
    )
