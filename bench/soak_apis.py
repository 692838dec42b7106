"""What clients of the soak ask of each API with grammars, tools and keys, and how its answers are
judged. Each act is one request; what is wrong with an answer is told to the soak."""
import json
import re

COLOURS = ["red", "green", "blue"]
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "colour"],
          "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
                         "colour": {"enum": COLOURS}}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
              "required": ["city"]}
QUESTIONS = ["What is the weather in Paris?", "Who is Ana?", "Order a pizza.", "What is 3 + 4?"]


def is_person(text):
    value = json.loads(text)
    return (set(value) == {"name", "age", "colour"} and isinstance(value["name"], str)
            and isinstance(value["age"], int) and value["colour"] in COLOURS)


def is_call(name, arguments):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    return name == "get_weather" and isinstance(value["city"], str)


def sampled(rng, **fields):
    return {"temperature": rng.choice([0, 0.7, 1, 1.5]), "seed": rng.randint(0, 1 << 30), **fields}


def json_schema(soak, rng):
    reply = soak.answer(soak.chat(rng.choice(QUESTIONS), **sampled(rng, max_tokens=400, response_format={
        "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}})))
    for choice in reply["choices"] if reply else []:
        if choice["finish_reason"] == "stop" and not is_person(choice["message"]["content"]):
            soak.fail(f"not of its schema: {choice}")


def regex(soak, rng):
    """A pattern of its own each time: compiled, not found."""
    pattern = f"({rng.choice(QUESTIONS)[:5]}|[a-z]{{{rng.randint(1, 9)},{rng.randint(10, 40)}}})[.!]"
    reply = soak.answer({"model": soak.model, "prompt": "Say it", **sampled(rng, max_tokens=200),
                         "structured_outputs": {"regex": pattern}}, "/v1/completions")
    for choice in reply["choices"] if reply else []:
        if choice["finish_reason"] == "stop" and not re.fullmatch(pattern, choice["text"]):
            soak.fail(f"not {pattern}: {choice}")


def tools(soak, rng):
    wanted = rng.choice(["required", "auto", "none"])
    reply = soak.answer(soak.chat(rng.choice(QUESTIONS), **sampled(rng, max_tokens=400), tool_choice=wanted, tools=[
        {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]))
    for choice in reply["choices"] if reply else []:
        calls = choice["message"].get("tool_calls") or []
        if wanted == "none" and calls or wanted == "required" and choice["finish_reason"] == "stop":
            soak.fail(f"tool_choice {wanted}: {choice}")
        if wanted == "required" and choice["finish_reason"] == "tool_calls":
            if not all(is_call(c["function"]["name"], c["function"]["arguments"]) for c in calls):
                soak.fail(f"not a call of what was offered: {choice}")


def responses(soak, rng):
    text = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": SCHEMA}}
    fields = {"text": text} if rng.random() < 0.5 else {}
    reply = soak.answer({"model": soak.model, "input": rng.choice(QUESTIONS), "max_output_tokens": 400,
                         "temperature": rng.choice([0, 1]), **fields}, "/v1/responses")
    if reply is None:
        return
    if reply["status"] not in ("completed", "incomplete"):
        soak.fail(f"responses: {reply['status']}")
    said = [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]
    if fields and reply["status"] == "completed" and not is_person("".join(said)):
        soak.fail(f"responses, not of its schema: {said}")


def messages(soak, rng):
    offer = {"tools": [{"name": "get_weather", "input_schema": PARAMETERS}]}
    offer["tool_choice"] = {"type": rng.choice(["any", "auto"])}
    fields = offer if rng.random() < 0.5 else {}
    reply = soak.answer({"model": soak.model, "max_tokens": 400, "temperature": rng.choice([0, 1]), **fields,
                         "messages": [{"role": "user", "content": rng.choice(QUESTIONS)}]}, "/v1/messages")
    if reply is None:
        return
    calls = [part for part in reply["content"] if part["type"] == "tool_use"]
    if calls and not fields:
        soak.fail(f"messages: a call without an offer: {calls}")
    if fields and offer["tool_choice"]["type"] == "any" and reply["stop_reason"] == "tool_use":
        if not all(is_call(c["name"], c["input"]) for c in calls):
            soak.fail(f"messages: not a call of what was offered: {calls}")


def event_stream(soak, rng):
    """Any API's stream to its end, whose last event that API promises."""
    path, body, last = rng.choice([
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 200}, b"event: response."),
        ("/v1/messages", {"max_tokens": 200, "messages": [{"role": "user", "content": "Hello"}]},
         b"event: message_stop"),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 200}, b"data: [DONE]")])
    status, _, data = soak.server.ask({"model": soak.model, "stream": True, **body}, path)
    if status == 429:
        soak.count("rejected")
    elif status != 200 or last not in data[-2000:]:
        soak.fail(f"{path}: status {status}, ends with {data[-300:]!r}")


def bad_key(soak, rng):
    status, _, data = soak.server.ask({"model": soak.model}, key=rng.choice(["", "wrong", "k1x"]))
    if status != 401:
        soak.fail(f"a wrong key: status {status}: {data[:200]!r}")


ACTS = [(json_schema, 6), (regex, 3), (tools, 6), (responses, 5), (messages, 5), (event_stream, 5),
        (bad_key, 1)]
