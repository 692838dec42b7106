"""Render OpenAI-shaped messages in Harmony, as the openai-harmony library does.

A rendered prompt is a list of (text, weight) pieces: the text spells Harmony's special tokens,
the weight is what training multiplies the loss of those tokens by. Pieces meet at special tokens
only, so that tokenizing them one by one gives the ids of the whole.
"""

import json
import re

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CUTOFF = "2024-06"
END, PAD = "<|return|>", "<|endoftext|>"
STOPS = (END, "<|call|>", PAD)
PROMPT_WEIGHT = 0.1  # the model also learns a little of how users write
HISTORY_WEIGHT = 0.0  # earlier answers have lost their analysis: they must not teach to skip it


def system_message(effort, date, has_functions):
    lines = [IDENTITY, f"Knowledge cutoff: {CUTOFF}"] + ([f"Current date: {date}"] if date else [])
    channels = (
        "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    )
    if has_functions:
        channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
    text = "\n\n".join(["\n".join(lines), f"Reasoning: {effort}", channels])
    return f"<|start|>system<|message|>{text}<|end|>"


def type_of(schema, indent):
    """The TypeScript-like type of a JSON schema: the part of the library's rules that the tasks use."""
    kind = schema.get("type")
    if kind == "object":
        out = "{\n"
        required = schema.get("required", [])
        for key, value in schema.get("properties", {}).items():
            if "description" in value:
                out += f"{indent}// {value['description']}\n"
            optional = "" if key in required else "?"
            out += f"{indent}{key}{optional}: {type_of(value, indent + '    ')},"
            if "default" in value:
                default = value["default"]
                bare = isinstance(default, str) and "enum" in value
                out += f" // default: {default if bare else json.dumps(default)}"
            out += "\n"
        return out + indent + "}"
    if kind == "string":
        return " | ".join(f'"{v}"' for v in schema["enum"]) if schema.get("enum") else "string"
    if kind in ("number", "integer"):
        return "number"
    if kind == "boolean":
        return "boolean"
    if kind == "array":
        return type_of(schema["items"], indent) + "[]" if "items" in schema else "Array<any>"
    return "any"


def tools_block(tools):
    lines = ["# Tools\n", "## functions\n", "namespace functions {\n"]
    for tool in tools:
        function = tool["function"]
        lines += [f"// {line}" for line in function.get("description", "").splitlines()]
        schema = function.get("parameters")
        arguments = f"(_: {type_of(schema, '')})" if schema is not None else "()"
        lines.append(f"type {function['name']} = {arguments} => any;\n")
    return "\n".join(lines + ["} // namespace functions"])


def developer_message(instructions, tools):
    sections = [f"# Instructions\n\n{instructions}"] if instructions else []
    sections += [tools_block(tools)] if tools else []
    text = "\n\n".join(sections)
    return f"<|start|>developer<|message|>{text}<|end|>" if sections else ""


def call_text(name, arguments, sampled):
    """A function call: in the order that the model samples, or as the library renders history."""
    if sampled:
        return (
            f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
            f"<|message|>{arguments}<|call|>"
        )
    return (
        f"<|start|>assistant to=functions.{name}<|channel|>commentary json"
        f"<|message|>{arguments}<|call|>"
    )


def render_prompt(messages, tools, effort, date, calls_as_sampled=False):
    """Pieces up to and including <|start|>assistant."""
    pieces = [(system_message(effort, date, bool(tools)), PROMPT_WEIGHT)]
    instructions = None
    if messages and messages[0]["role"] in ("system", "developer"):
        instructions, messages = messages[0]["content"], messages[1:]
    developer = developer_message(instructions, tools)
    if developer:
        pieces.append((developer, PROMPT_WEIGHT))
    last_final = max(
        (i for i, m in enumerate(messages) if m["role"] == "assistant" and m.get("content")),
        default=-1,
    )
    names = {}
    for i, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "user":
            pieces.append((f"<|start|>user<|message|>{content}<|end|>", PROMPT_WEIGHT))
        elif role == "tool":
            name = names[message["tool_call_id"]]
            text = f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>"
            pieces.append((text, PROMPT_WEIGHT))
        elif role == "assistant":
            text = ""
            if message.get("reasoning") and i > last_final:
                text += (
                    f"<|start|>assistant<|channel|>analysis<|message|>{message['reasoning']}<|end|>"
                )
            for call in message.get("tool_calls", []):
                function = call["function"]
                names[call["id"]] = function["name"]
                text += call_text(function["name"], function["arguments"], calls_as_sampled)
            if content:
                text += f"<|start|>assistant<|channel|>final<|message|>{content}<|end|>"
            pieces.append((text, HISTORY_WEIGHT))
    pieces.append(("<|start|>assistant", PROMPT_WEIGHT))
    return pieces


def training_options(rng):
    """How one conversation of the training is rendered: what its prompt and its target are given."""
    return {"calls_as_sampled": rng.random() < 0.5}, {}


def render_target(reasoning, answer=None, call=None):
    """What the model is to sample after <|start|>assistant: analysis, then the answer or a call."""
    text = (
        f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant" if reasoning else ""
    )
    if call:
        return text + call_text(call["name"], call["arguments"], True)[len("<|start|>assistant") :]
    return text + f"<|channel|>final<|message|>{answer}<|return|>"


def parse(text):
    """The sampled text as {"reasoning", "content", "call"}."""
    reasoning = re.search(r"<\|channel\|>analysis<\|message\|>(.*?)<\|end\|>", text, re.S)
    call = re.search(
        r"<\|channel\|>commentary to=functions\.(\S+) <\|constrain\|>json<\|message\|>(.*?)<\|call\|>",
        text,
        re.S,
    )
    final = re.search(r"<\|channel\|>final<\|message\|>(.*?)<\|return\|>", text, re.S)
    return {
        "reasoning": reasoning.group(1) if reasoning else "",
        "content": final.group(1) if final else "",
        "call": {"name": call.group(1), "arguments": call.group(2)} if call else None,
    }
