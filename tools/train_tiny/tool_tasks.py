"""Function calls, and answers to function results."""

import json

import tables
from item import Item, dress, join_and, pseudo_word, random_prose, user
from tool_specs import ENUMS, NUMERIC, OPTIONAL, SAYINGS, TOOLS, kinds_of

VERBS = "get set find add remove update count check make send load open read start stop".split()


def _schema_of(rng, kind, description):
    schema = {"type": rng.choice(["integer", "number"]) if kind in NUMERIC else "string"}
    if kind in ENUMS:
        schema["enum"] = ENUMS[kind]
    choice = rng.random()
    if choice < 0.2 and description:
        schema["description"] = description
    elif choice < 0.5 and kind in SAYINGS:
        schema["description"] = rng.choice(SAYINGS[kind])
    elif choice < 0.58:
        schema["description"] = " ".join(random_prose(rng).split()[: rng.randint(2, 7)])
    return schema


def _made_up_tool(rng):
    """A function that no list holds: the request spells its arguments out."""
    name = (
        rng.choice(VERBS)
        + "_"
        + (pseudo_word(rng) if rng.random() < 0.5 else rng.choice(tables.WORDS))
    )
    kinds = ["word", "number", "made_up", "person", "city", "color", "code", "phrase"]
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
        properties[key] = _schema_of(rng, kind, description)
        required.append(key)
    for name, schema in rng.sample(OPTIONAL, rng.choice([0, 0, 0, 1, 1, 2])):
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


def new_toolset(rng):
    """A toolset and the place in it of the tool that is asked for."""
    spec = rng.choice(TOOLS) if rng.random() < 0.7 else _made_up_tool(rng)
    chosen = toolset(rng, spec)
    return chosen, next(i for i, s in enumerate(chosen[1]) if s is spec)


def _request(rng, chosen, index):
    (tools, _, all_keys), spec = chosen, chosen[1][index]
    kinds, keys = kinds_of(rng), all_keys[index]
    values = [kinds[kind]() for kind, _, _ in spec[2]]
    question = rng.choice(spec[3]).format(*values)
    question = dress(rng, question) if "{" not in question else question
    arguments = dict(zip(keys, values))
    return tools, tools[index]["function"]["name"], question, arguments


def _call_reasoning(name, arguments, effort, tools):
    if effort == "low":
        return f"Call {name}."
    given = " ".join(f"{k}: {v}." for k, v in arguments.items()) or "No arguments."
    if effort == "medium":
        return f"I need {name}. {given}"
    names = join_and([t["function"]["name"] for t in tools])
    return f"The user asks for something that a function can do. There are the functions {names}. The right one is {name}. Its arguments are: {given} I call it."


def call(rng, effort):
    chosen, index = new_toolset(rng)
    before = earlier_call(rng, chosen) if rng.random() < 0.12 else []
    tools, name, question, arguments = _request(rng, chosen, index)
    made = {"name": name, "arguments": json.dumps(arguments)}
    return Item(
        "call",
        f"call {name} {json.dumps(arguments)}" + ("" if arguments else f" {question}"),
        before + user(question),
        {"call": {"name": name, "arguments": arguments}},
        _call_reasoning(name, arguments, effort, tools),
        call=made,
        tools=tools,
    )


def tool_answer(rng, effort):
    """The function has answered: say so in words."""
    chosen, index = new_toolset(rng)
    return _answered(rng, effort, chosen, index)


def earlier_call(rng, chosen):
    """A finished earlier turn that called one of the tools."""
    item = _answered(rng, "low", chosen, rng.randrange(len(chosen[1])))
    return item.messages + [{"role": "assistant", "content": item.answer}]


def _answered(rng, effort, chosen, index):
    tools, name, question, arguments = _request(rng, chosen, index)
    spec = chosen[1][index]
    kinds, result = kinds_of(rng), {}
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
