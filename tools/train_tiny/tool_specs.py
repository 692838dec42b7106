"""The functions that the conversations know, and what may stand in their arguments.

A tool: names, descriptions, parameters (kind, names, required, description), questions, result.
Kinds make a value; {0}, {1} in a question are the first and second parameter.
"""

import tables
from item import city, noun, person, pseudo_word, random_date, random_prose


def kinds_of(rng):
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
        "phrase": lambda: " ".join(random_prose(rng).rstrip(".?").split()[: rng.randint(2, 6)]),
        "expression": lambda: _expression(rng),
        "enum unit": lambda: rng.choice(ENUMS["enum unit"]),
        "enum size": lambda: rng.choice(ENUMS["enum size"]),
    }


def _expression(rng):
    a, b, c = (rng.randint(1, 99) for _ in range(3))
    return rng.choice(
        [
            f"{a} + {b}",
            f"{a} * {b}",
            f"({a} + {b}) * {c}",
            f"{a} - {b}",
            f"{a} / {b}",
            f"{a}*({b}+{c})",
            f"{a}*{b}",
        ]
    )


NUMERIC = {"minutes", "amount", "number", "degrees", "people"}
ENUMS = {"enum unit": ["celsius", "fahrenheit"], "enum size": ["small", "medium", "large"]}
# What a parameter's description may say; a spec's own comes first.
SAYINGS = {
    "city": [
        "The city and state, e.g. San Francisco, CA",
        "City name",
        "The city, e.g. Paris",
        "Where",
    ],
    "person": ["Name of the person", "Who, e.g. Anna", "Full name"],
    "number": ["A number", "The value", "Integer"],
    "word": ["A word", "The text", "Text, e.g. hello"],
    "date": ["Date as YYYY-MM-DD", "The day, e.g. 2024-06-01"],
    "time": ["Time as HH:MM", "24 hour clock"],
    "phrase": ["The text", "What to say", "Free text"],
    "expression": ["The expression, e.g. 2 + 3", "What to compute"],
    "enum unit": ["The unit", "Temperature unit to use"],
}
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
        ["get_weather", "weather", "get_current_weather", "forecast"],
        ["Get the current weather in a given location", "Weather in a unit of your choice."],
        [
            ("city", ["location", "city", "place"], None),
            ("enum unit", ["unit", "units", "format"], None),
        ],
        [
            "What is the weather in {0} in {1}?",
            "How warm is it in {0}, in {1}?",
            "Weather in {0} in {1}, please.",
            "Give me the {1} temperature in {0}.",
        ],
        {"temperature": "degrees", "sky": ["sunny", "cloudy", "rain", "snow", "fog"]},
    ),
    (
        ["add", "add_numbers", "sum"],
        ["Add two numbers", "Sum of two numbers.", "Adds a and b"],
        [("number", ["a", "x", "first"], None), ("number", ["b", "y", "second"], None)],
        [
            "Use the tool: {0} + {1}",
            "Add {0} and {1} with the tool.",
            "What is {0} + {1}? Use the tool.",
            "Call the function for {0} plus {1}.",
        ],
        {"result": "number"},
    ),
    (
        ["multiply", "times", "product"],
        ["Multiply two numbers", "Product of two numbers."],
        [("number", ["a", "x", "first"], None), ("number", ["b", "y", "second"], None)],
        [
            "Use the tool: {0} * {1}",
            "Multiply {0} by {1} with the tool.",
            "What is {0} times {1}? Use the function.",
        ],
        {"result": "number"},
    ),
    (
        ["calculator", "calculate", "evaluate", "compute"],
        ["Evaluate an expression", "A calculator.", "Compute an arithmetic expression."],
        [("expression", ["expression", "expr", "input", "formula"], None)],
        [
            "Use the calculator: {0}",
            "Evaluate {0} with the tool.",
            "What is {0}? Use the tool.",
            "Let the tool compute {0}.",
        ],
        {"result": "number"},
    ),
    (
        ["search", "web_search", "search_web", "find"],
        ["Search the web.", "Search for a query.", "Full-text search."],
        [("phrase", ["query", "q", "text"], None)],
        ["Search for {0}.", "Search the web for {0}", "Look for {0}.", "Find pages about {0}."],
        {"results": "number"},
    ),
    (
        ["add_note", "write_note", "remember"],
        ["Write a note.", "Keep a note for later."],
        [("phrase", ["text", "note", "content"], None)],
        ["Note: {0}", "Write down: {0}", "Make a note: {0}", "Remember this: {0}"],
        {"note_id": "number"},
    ),
    (
        ["order_pizza", "order_drink", "order_coffee"],
        ["Place an order.", "Order for a person."],
        [("enum size", ["size"], None), ("person", ["name", "customer"], None)],
        ["A {0} one for {1}, please.", "Order a {0} one for {1}.", "{1} wants a {0} one."],
        {"order_id": "number"},
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
    ("language", {"type": "string", "description": "Language of the answer"}),
    ("format", {"type": "string", "enum": ["short", "long"], "description": "How to answer"}),
    ("tags", {"type": "array", "items": {"type": "string"}}),
    ("days", {"type": "integer", "description": "Number of days"}),
    ("units", {"type": "string", "enum": ["metric", "imperial"]}),
]
