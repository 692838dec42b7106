#!/usr/bin/env python3
"""Writes tests/goldens/harmony.json: what the openai-harmony package makes of chats, tools and token sequences.

  TIKTOKEN_ENCODINGS_BASE=DIR tools/write_harmony_goldens.py OUT.json

Needs openai-harmony 0.0.8 and, in DIR, o200k_base.tiktoken (the package checks its hash). Fixed seed: the same file
every time. Sections:
  chats     a neutral chat (text/chat/chat.h as JSON) and the ids of its prompt. The mapping from chat to messages is
            written out here a second time; dropping old analysis is ours (all before the last final), and checked against
            the package where its weaker rule says the same.
  tools     namespaces and the text of their "# Tools" block
  messages  single messages and their ids
  parses    ids and the messages that the package's StreamableParser reads from them; those that it refuses are left
            out. It takes a content type without a recipient for a recipient: put right here.
"""
import json
import random
import sys

import openai_harmony as oh

ENCODING = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)
EFFORTS = {"low": oh.ReasoningEffort.LOW, "medium": oh.ReasoningEffort.MEDIUM, "high": oh.ReasoningEffort.HIGH}
START, END, MESSAGE, CHANNEL = 200006, 200007, 200008, 200005
CONSTRAIN, CALL, RETURN = 200003, 200012, 200002


def text_ids(text):
    return ENCODING.encode(text, disallowed_special=())


def marked_ids(text):
    """Ids of text whose spelled-out special tokens are meant."""
    return ENCODING.encode(text, allowed_special="all")


# ---- tools ----------------------------------------------------------------------------------------------------------

def namespace_config(ns):
    tools = [oh.ToolDescription.new(t["name"], t.get("description", ""), t.get("parameters")) for t in ns["tools"]]
    return oh.ToolNamespaceConfig(name=ns["name"], description=ns.get("description") or None, tools=tools)


def tools_text(namespaces):
    content = oh.DeveloperContent.new()
    for ns in namespaces:
        content = content.with_tools(namespace_config(ns))
    ids = ENCODING.render(oh.Message.from_role_and_content(oh.Role.DEVELOPER, content))
    text = ENCODING.decode(ids)
    prefix, suffix = "<|start|>developer<|message|>", "<|end|>"
    assert text.startswith(prefix) and text.endswith(suffix)
    return text[len(prefix):-len(suffix)]


def obj(properties, **more):
    return {"type": "object", "properties": properties, **more}


SCHEMAS = {
    "no type": {},
    "empty object": obj({}),
    "object without properties": {"type": "object"},
    "scalars": obj({k: {"type": k} for k in ["string", "number", "integer", "boolean", "null", "array", "object", "odd"]},
                   required=["string", "array"]),
    "order is the caller's": obj({"zeta": {"type": "string"}, "alpha": {"type": "string"}, "mid": {"type": "string"}}),
    "enums": obj({"a": {"type": "string", "enum": ["x", "y"], "default": "x"}, "b": {"type": "string", "enum": []},
                  "c": {"type": "string", "enum": ["x", 1, None]}, "d": {"enum": ["x"]}, "e": {"type": "integer", "enum": [1, 2]},
                  "f": {"type": "array", "items": {"type": "string", "enum": ["u", "v"]}}}),
    "defaults": obj({"s": {"type": "string", "default": "a \"b\""}, "i": {"type": "integer", "default": 5},
                     "n": {"type": "number", "default": None}, "t": {"type": "boolean", "default": True},
                     "o": {"type": "object", "default": {"z": [1, "é", None], "a": 0.5}},
                     "l": {"type": "array", "items": {"type": "string"}, "default": []}}),
    "floats": obj({f"f{i}": {"type": "number", "default": x} for i, x in enumerate(
        [0.0, -0.0, 1.0, 0.1, 0.7, 1.5, -2.25, 100.0, 1e-4, 1e-5, 1.25e-5, 1e-6, 1.5e-7, 1e15, 1e16, 1.5e16, 1.2e17, 1e300,
         123456.789, 12345678901234567890, -9007199254740993, 18446744073709551615, 18446744073709551616])}),
    "comments": obj({"a": {"title": "A title", "type": "string", "description": "A description"},
                     "b": {"type": "string", "description": "Two\nlines", "examples": ["one", 2, "three"]},
                     "c": {"type": "string", "examples": []}, "d": {"title": 3, "description": 4, "type": "string"}}),
    "nested": obj({"a": obj({"x": {"type": "number"}}), "b": obj({"y": {"type": "number"}}, description="inner"),
                   "c": obj({"d": obj({"e": {"type": "string", "description": "deep"}}, required=["e"])}, required=["d"])}),
    "described at the top": obj({"a": {"type": "string"}}, description="The arguments"),
    "arrays": obj({"a": {"type": "array"}, "b": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                   "c": {"type": "array", "items": obj({"x": {"type": "string"}})}, "d": {"type": "array", "items": {}}}),
    "type lists": obj({"a": {"type": ["string", "null"]}, "b": {"type": ["integer", "number", "boolean"]},
                       "c": {"type": []}, "d": {"type": ["string"], "nullable": True}}),
    "nullable": obj({"a": {"type": "string", "nullable": True}, "b": {"type": ["string", "null"], "nullable": True},
                     "c": {"type": "string", "enum": ["null"], "nullable": True}, "d": {"nullable": True},
                     "e": {"type": "string", "nullable": False}, "f": {"type": "string", "nullable": "yes"}}),
    "refs": obj({"a": {"$ref": "#/$defs/x"}, "b": {"anyOf": [{"type": "string"}]}, "c": {"allOf": [{"type": "string"}]},
                 "d": {"const": 1}}, **{"$defs": {"x": {"type": "string"}}}),
    "oneOf at the top": {"oneOf": [{"type": "string", "description": "a"}, obj({"x": {"type": "number"}}),
                                   {"type": "string", "enum": ["p"], "default": "p"}, {"type": "number", "default": 3, "nullable": True},
                                   {"type": "string", "default": "q", "description": "d"}]},
    "oneOf in properties": obj({
        "a": {"oneOf": [{"type": "string"}, {"type": "number"}]},
        "b": {"description": "outer", "oneOf": [{"type": "string", "description": "first"}, {"type": "number", "description": "second"}]},
        "c": {"description": "same", "oneOf": [{"type": "string", "description": "same"}, {"type": "number", "description": "same"},
                                               {"type": "boolean", "description": "other"}]},
        "d": {"title": "T", "examples": ["e"], "default": "x", "oneOf": [{"type": "string", "default": "x"}, {"type": "number", "default": 1}]},
        "e": {"enum": ["x"], "default": "x", "oneOf": [{"type": "string", "enum": ["x"], "default": "x", "nullable": True}]},
        "f": {"oneOf": []}, "g": {"description": "only", "oneOf": []}, "h": {"oneOf": "no array", "type": "string", "description": "d", "default": 1},
        "i": {"default": 2, "oneOf": [obj({"x": {"oneOf": [{"type": "string"}, {"type": "null"}]}})]}}, required=["a", "c"]),
    "oneOf in items": obj({"a": {"type": "array", "items": {"oneOf": [{"type": "string"}, {"type": "number"}]}}}),
    "odd members": {"type": "object", "properties": "no object", "required": "a", "description": 1},
    "odd required": obj({"a": {"type": "string"}, "b": {"type": "string"}}, required=[1, "b", None]),
    "properties that are no schemas": obj({"a": True, "b": "text", "c": None, "d": [1], "e": 3}),
    "unicode": obj({"naïve": {"type": "string", "description": "日本語 💖", "default": "é\n\t\u0001\u007f\"\\"},
                    "o": {"default": {"é\u0001": "\b\f\n\r\t\u0000\u001f\u007f\"\\/"}}}),
    "ignored members": obj({"a": {"type": "integer", "minimum": 1, "maximum": 3}, "b": {"type": "string", "pattern": "a", "format": "date"}},
                           additionalProperties=False),
}

DESCRIPTIONS = ["", "One line.", "Two\nlines.", "Ends in a newline\n", "Windows\r\nlines\r\n", "\n\nblank lines\n\n", "a\rb\r"]


def random_schema(rng, depth):
    """Any schema, made of the words that the renderer looks at."""
    out = {}
    kinds = ["string", "number", "integer", "boolean", "array", "object", "null", None]
    kind = rng.choice(kinds if depth > 0 else kinds[:4])
    if rng.random() < 0.1:
        out["type"] = rng.sample(["string", "integer", "null"], rng.randint(0, 3))
    elif kind is not None:
        out["type"] = kind
    if rng.random() < 0.4:
        out["description"] = rng.choice(["first", "second", "with\nnewline", ""])
    if rng.random() < 0.2:
        out["title"] = "title"
    if rng.random() < 0.2:
        out["nullable"] = rng.random() < 0.7
    if rng.random() < 0.2:
        out["enum"] = rng.choice([["a", "b"], [], ["a", 1], [1]])
    if rng.random() < 0.3:
        out["default"] = rng.choice(["a", 1, 2.5, None, True, [1, "x"], {"k": "v"}])
    if rng.random() < 0.2:
        out["examples"] = rng.choice([["x"], ["x", 1, "y"], []])
    if depth > 0 and rng.random() < 0.25:
        out["oneOf"] = [random_schema(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if depth > 0 and kind == "array" and rng.random() < 0.8:
        out["items"] = random_schema(rng, depth - 1)
    if depth > 0 and kind == "object":
        keys = rng.sample("abcdefg", rng.randint(0, 4))
        out["properties"] = {k: random_schema(rng, depth - 1) for k in keys}
        out["required"] = [k for k in keys if rng.random() < 0.5]
    items = list(out.items())
    rng.shuffle(items)
    return dict(items)


def builtin(config):
    config = config.model_dump(exclude_none=True)
    return {"name": config["name"], "description": config.get("description", ""),
            "tools": [{k: v for k, v in t.items()} for t in config["tools"]]}


BROWSER, PYTHON = builtin(oh.ToolNamespaceConfig.browser()), builtin(oh.ToolNamespaceConfig.python())


def tool_cases(rng):
    def functions(*tools):
        return [{"name": "functions", "tools": list(tools)}]

    cases = {name: functions({"name": "f", "description": "", "parameters": schema}) for name, schema in SCHEMAS.items()}
    for description in DESCRIPTIONS:
        cases["description " + json.dumps(description)] = functions({"name": "f", "description": description},
                                                                    {"name": "g", "description": description, "parameters": obj({})})
        cases["namespace " + json.dumps(description)] = [{"name": "ns", "description": description, "tools": [{"name": "f", "description": ""}]},
                                                         {"name": "without", "description": description, "tools": []}]
    cases["browser"], cases["python"], cases["browser and python"] = [BROWSER], [PYTHON], [BROWSER, PYTHON]
    for i in range(150):
        cases[f"random {i}"] = functions({"name": "f", "description": "", "parameters": random_schema(rng, 3)})
    return [{"name": name, "namespaces": ns, "text": tools_text(ns)} for name, ns in cases.items()]


# ---- chats ----------------------------------------------------------------------------------------------------------

def message(role, content, name=None, channel=None, recipient=None, content_type=None):
    out = oh.Message.from_author_and_content(oh.Author(role=role, name=name), content)
    out.channel, out.recipient, out.content_type = channel, recipient, content_type
    return out


def assistant_messages(m, calls):
    out = []
    if m.get("reasoning"):
        out.append(message(oh.Role.ASSISTANT, m["reasoning"], channel="analysis"))
    called = m.get("tool_calls", [])
    if m.get("content") or not (called or m.get("reasoning")):
        out.append(message(oh.Role.ASSISTANT, m.get("content", ""), channel="commentary" if called else "final"))
    for call in called:
        calls[call["id"]] = "functions." + call["name"]
        out.append(message(oh.Role.ASSISTANT, call["arguments"], channel="commentary", recipient=calls[call["id"]], content_type="json"))
    return out


def chat_messages(chat):
    options, messages, calls = chat.get("options", {}), list(chat["messages"]), {}
    system = oh.SystemContent.new().with_reasoning_effort(EFFORTS[options.get("effort", "medium")])
    if "model_identity" in options:
        system.model_identity = options["model_identity"] or None
    if "knowledge_cutoff" in options:
        system.knowledge_cutoff = options["knowledge_cutoff"] or None
    if options.get("current_date"):
        system = system.with_conversation_start_date(options["current_date"])
    for ns in options.get("builtin_tools", []):
        system = system.with_tools(namespace_config(ns))
    out = [message(oh.Role.SYSTEM, system)]

    developer = oh.DeveloperContent.new()
    instructions = messages.pop(0)["content"] if messages[0]["role"] in ("system", "developer") else ""
    if instructions:
        developer = developer.with_instructions(instructions)
    tools = chat.get("tools", []) if options.get("tool_choice") != "none" else []
    if tools:
        developer = developer.with_tools(namespace_config({"name": "functions", "tools": tools}))
    if instructions or tools:
        out.append(message(oh.Role.DEVELOPER, developer))

    for m in messages:
        if m["role"] == "assistant":
            out += assistant_messages(m, calls)
        elif m["role"] == "tool":
            out.append(message(oh.Role.TOOL, m["content"], calls[m["tool_call_id"]], "commentary", "assistant"))
        elif m["role"] == "user":
            out.append(message(oh.Role.USER, m["content"], m.get("name") or None))
        elif m["content"]:
            out.append(message(oh.Role.DEVELOPER, m["content"]))
    return out


def drop_analysis(messages):
    finals = [i for i, m in enumerate(messages) if m.channel == "final"]
    last = finals[-1] if finals else -1
    return [m for i, m in enumerate(messages) if m.channel != "analysis" or i > last]


def chat_ids(chat):
    messages = chat_messages(chat)
    kept = oh.Conversation.from_messages(drop_analysis(messages))
    ids = ENCODING.render_conversation_for_completion(kept, oh.Role.ASSISTANT, oh.RenderConversationConfig(auto_drop_analysis=False))
    assistants = [m for m in messages if m.author.role == oh.Role.ASSISTANT]
    if len([m for m in assistants if m.channel == "final"]) == 1 and assistants[-1].channel == "final":
        theirs = ENCODING.render_conversation_for_completion(oh.Conversation.from_messages(messages), oh.Role.ASSISTANT)
        assert theirs == ids, "the package drops other analysis"
    return ids


STOCK = [{"name": "get_stock", "description": "Look up stock.",
          "parameters": obj({"sku": {"type": "string", "description": "Article number"},
                             "warehouse": {"type": "string", "enum": ["east", "west"], "default": "east"},
                             "limit": {"type": "integer", "default": 5}}, required=["sku"])},
         {"name": "ping", "description": "Ping."}]
CALL_STOCK = {"id": "c1", "name": "get_stock", "arguments": '{"sku":"A7","warehouse":"west"}'}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def asst(content="", **more):
    return {"role": "assistant", "content": content, **more}


def tool(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def chat_cases():
    dated = {"current_date": "2026-01-15"}
    low = {**dated, "effort": "low"}
    call_turn = [user("How many A7 in west?"), asst(reasoning="Need get_stock.", tool_calls=[CALL_STOCK]), tool("c1", '{"count":12}')]
    specials = "".join(f"<|{s}|> " for s in ["start", "end", "message", "channel", "constrain", "call", "return", "endoftext"])
    cases = {
        "EX1": ([user("What is 2 + 2?")], [], {"current_date": "2025-06-28"}),
        "EX3": ([user("What is 2 + 2?"), asst("2 + 2 = 4.", reasoning="Simple arithmetic."), user("And 9 / 2?")], [], dated),
        "EX4": ([{"role": "developer", "content": "Be brief."}, user("How many A7 in west?")], STOCK, low),
        "EX6": ([{"role": "developer", "content": "Be brief."}] + call_turn, STOCK, low),
        "EX9": ([user("Look it up.")], [], {**dated, "builtin_tools": [PYTHON, BROWSER]}),
        "browser only": ([user("Hi")], STOCK, {**dated, "builtin_tools": [BROWSER], "effort": "high"}),
        "no date": ([user("Hi")], [], {}),
        "high": ([user("Hi")], [], {**dated, "effort": "high"}),
        "other identity, no cutoff": ([user("Hi")], [], {"model_identity": "You are nibble.", "knowledge_cutoff": ""}),
        "no top section": ([user("Hi")], [], {"model_identity": "", "knowledge_cutoff": ""}),
        "system as instructions": ([{"role": "system", "content": "Talk like a pirate."}, user("Hi")], [], dated),
        "empty instructions": ([{"role": "system", "content": ""}, user("Hi")], [], dated),
        "tools without instructions": ([user("Hi")], STOCK, dated),
        "tool_choice none": ([user("Hi")], STOCK, {**dated, "tool_choice": "none"}),
        "later system and developer": ([{"role": "system", "content": "One."}, user("Hi"), {"role": "system", "content": "Two."},
                                        {"role": "developer", "content": "Three."}, user("Go")], [], dated),
        "named users": ([user("Hi", name="ann"), user("Hello", name="bob_2")], [], dated),
        "multi-turn, analysis dropped": ([user("a"), asst("A", reasoning="ra"), user("b"), asst("B", reasoning="rb"), user("c")], [], dated),
        "tool history after the answer": (call_turn + [asst("There are 12.", reasoning="Say it."), user("Thanks"), asst("Welcome"), user("More?")], STOCK, low),
        "tool turn after an answer": ([user("Hi"), asst("Hello", reasoning="greet")] + call_turn, STOCK, low),
        "reasoning between several calls": ([user("Both?"), asst(reasoning="first", tool_calls=[CALL_STOCK]), tool("c1", "12"),
                                             asst("Now the other.", reasoning="second", tool_calls=[{"id": "c2", "name": "ping", "arguments": "{}"}]),
                                             tool("c2", "pong")], STOCK, dated),
        "parallel calls": ([user("Both?"), asst(tool_calls=[CALL_STOCK, {"id": "c2", "name": "ping", "arguments": ""}]),
                            tool("c2", "pong"), tool("c1", '{"count": 12}\n')], STOCK, dated),
        "one id used twice": ([user("x"), asst(tool_calls=[CALL_STOCK]), tool("c1", "1"), asst("ok"), user("y"),
                               asst(tool_calls=[{"id": "c1", "name": "ping", "arguments": "{}"}]), tool("c1", "2")], STOCK, dated),
        "an answer without text": ([user("x"), asst(""), user("y")], [], dated),
        "reasoning without an answer": ([user("x"), asst("", reasoning="hm"), user("y")], [], dated),
        "specials spelled by users": ([{"role": "system", "content": specials}, user(specials), asst(specials, reasoning=specials), user(specials, name="a")], [], dated),
        "specials spelled in tools": ([user("x"), asst(tool_calls=[{"id": "c", "name": "f", "arguments": specials}]), tool("c", specials)],
                                      [{"name": "f", "description": specials, "parameters": obj({"a": {"type": "string", "description": specials}})}], dated),
        "unicode and spaces": ([user("  \n\n한국어 ½² 💖 naïve\r\n\r\n"), asst("\tx  "), user(" ")], [], dated),
        "tool result raw": ([user("x"), asst(tool_calls=[CALL_STOCK]), tool("c1", '"quoted" {"a": [1,\n2]} <b>')], STOCK, dated),
    }
    out = []
    for name, (messages, tools, options) in cases.items():
        chat = {"messages": messages, "tools": tools, "options": options}
        out.append({"name": name, "chat": chat, "ids": chat_ids(chat)})
    return out


# ---- single messages, parsing ---------------------------------------------------------------------------------------

def message_cases():
    out = []
    for author in ["assistant", "user", "functions.f", "browser.search"]:
        for recipient in [None, "functions.get_stock", "assistant"]:
            for channel in [None, "analysis", "commentary", "final"]:
                for content_type in [None, "json", "<|constrain|>json", "code"]:
                    is_tool = "." in author
                    m = message(oh.Role.TOOL if is_tool else oh.Role(author), "x {}", author if is_tool else None, channel, recipient, content_type)
                    header = {"author": author, "recipient": recipient or "", "channel": channel or "", "content_type": content_type or ""}
                    out.append({"header": header, "content": "x {}", "ids": ENCODING.render(m)})
    return out


def recipient_and_type(m):
    if (m.recipient or "").startswith("<|constrain|>"):
        assert not m.content_type
        return {"recipient": "", "content_type": m.recipient}
    return {"recipient": m.recipient or "", "content_type": m.content_type or ""}


def parsed(ids, role):
    """The package's messages, or None where it refuses."""
    parser = oh.StreamableParser(ENCODING, role)
    try:
        for i in ids:
            parser.process(i)
        parser.process_eos()
    except Exception:  # HarmonyError, or a panic of the Rust code
        return None
    return [{"author": m.author.name if m.author.role == oh.Role.TOOL else m.author.role.value, "channel": m.channel or "",
             **recipient_and_type(m), "content": "".join(c.text for c in m.content)} for m in parser.messages]


def parse_cases(rng):
    headers = ["<|channel|>analysis", "<|channel|>final", "<|channel|>commentary", "<|channel|>final <|constrain|>json",
               "<|channel|>final<|constrain|>json", "<|channel|>commentary to=functions.f <|constrain|>json", "<|channel|>commentary to=functions.f json",
               "<|channel|>commentary to=functions.f<|constrain|>json", "<|channel|>commentary to=functions.f", " to=functions.f<|channel|>commentary json",
               " to=functions.f<|channel|>commentary <|constrain|>json", "<|channel|>analysis to=browser.search code", " to=python<|channel|>analysis code",
               "assistant<|channel|>final", "assistant to=functions.f<|channel|>commentary"]
    contents = ["", "x", "2 + 2 = 4.", '{"sku":"A7"}', "한국어 💖\n\n", "to=functions.f json", "a\n<b> < |end|>"]
    out = []

    def add(name, ids, role):
        messages = parsed(ids, role)
        if messages is not None:
            out.append({"name": name, "role": role.value if role else "", "ids": ids, "messages": messages})

    for header in headers:
        for end in ["<|end|>", "<|return|>", "<|call|>", ""]:
            content = rng.choice(contents)
            add(header + end, marked_ids(header + "<|message|>") + text_ids(content) + marked_ids(end), oh.Role.ASSISTANT)
    for i in range(60):
        ids = []
        for k in range(rng.randint(1, 4)):
            if k > 0:
                ids += marked_ids("<|start|>assistant")
            header = rng.choice([h for h in headers if not (k > 0 and h.startswith("assistant"))])
            ids += marked_ids(header + "<|message|>") + text_ids(rng.choice(contents)) + [rng.choice([END, RETURN, CALL])]
        add(f"several {i}", ids, oh.Role.ASSISTANT)
    for i in range(60):  # any bytes at all
        content = [rng.randrange(199998) for _ in range(rng.randint(1, 12))]
        content += [rng.choice([9552, 31446, 244, 128, 187, 97])] * rng.randint(0, 3)
        rng.shuffle(content)
        add(f"bytes {i}", [CHANNEL, 17196, MESSAGE] + content + ([END] if i % 2 else []), oh.Role.ASSISTANT)
    add("half a character, then text", [CHANNEL, 17196, MESSAGE, 9552, *text_ids("Hi"), END], oh.Role.ASSISTANT)
    for name in ["EX1", "EX6"]:
        chat = next(c for c in chat_cases() if c["name"] == name)
        add("prompt of " + name, chat["ids"][:-2], None)
    assert len(out) > 150, len(out)
    return out


def main():
    rng = random.Random(20260115)
    goldens = {"source": "openai-harmony 0.0.8, o200k_harmony", "chats": chat_cases(), "tools": tool_cases(rng),
               "messages": message_cases(), "parses": parse_cases(rng)}
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("{\n")
        for i, (section, value) in enumerate(goldens.items()):
            out.write(("" if i == 0 else ",\n") + json.dumps(section) + ": ")
            if isinstance(value, list):
                rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in value)
                out.write("[\n" + rows + "\n]")
            else:
                out.write(json.dumps(value))
        out.write("\n}\n")
    print({section: len(value) for section, value in goldens.items()})


if __name__ == "__main__":
    main()
