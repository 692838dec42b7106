#!/usr/bin/env python3
"""Writes tests/data/chat_templates.jsonl.xz: what Hugging Face transformers make of conversations with the
70 chat templates that tools/setup.sh unpacks into build/jinja/models/templates.

First a line for each conversation, {"case", "variables"}, then one for each template and conversation:
{"template", "case", "text"}, or "error" instead of "text" where the template refuses the conversation.
The templates themselves are not copied.

usage: tools/make_template_goldens.py     (needs PyPI transformers 5.23 and jinja2)
"""
import datetime
import json
import lzma
import pathlib

import transformers.utils.chat_template_utils as chat_template_utils

ROOT = pathlib.Path(__file__).resolve().parent.parent
LITERALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class FixedDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 7, 26, 12, 0, 0, tzinfo=tz)


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description,
                                             "parameters": parameters}}


def call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    function("get_weather", "Today's weather in a <city> & \"around\" it",
             {"city": {"type": "string", "description": "the city's name"},
              "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}},
             ["city"]),
    function("add", "Sum of numbers",
             {"numbers": {"type": "array", "items": {"type": "number"}, "minItems": 1},
              "options": {"type": "object", "properties": {"exact": {"type": "boolean"}}}},
             ["numbers"])]

USER = {"role": "user", "content": "What is the weather in Paris?"}
SYSTEM = {"role": "system", "content": "You are terse.\nAnswer in French."}
ANSWER = {"role": "assistant", "content": "Il fait beau."}
REASONED = {"role": "assistant", "reasoning_content": "Sunny, says the window.\nSo:",
            "content": "Il fait beau."}
INLINE = {"role": "assistant", "content": "<think>\nSunny.\n</think>\n\nIl fait beau."}
CALLS = {"role": "assistant", "content": "",
         "tool_calls": [call("call00001", "get_weather", {"city": "Paris", "unit": "celsius"})]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather",
          "content": "{\"temperature\": 21.5, \"sky\": \"clear\"}"}
PARALLEL = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Two calls.",
            "tool_calls": [call("call00001", "get_weather", {"city": "Zürich \"süd\""}),
                           call("call00002", "add", {"numbers": [1, 2.5, -3],
                                                     "options": {"exact": True}})]}
RESULT_2 = {"role": "tool", "tool_call_id": "call00002", "name": "add", "content": "0.5"}
MORE = {"role": "user", "content": "And tomorrow?"}
ODD = {"role": "user", "content": "  ünïcödé 日本語 💖 <|im_end|></s> {{ 7 * 7 }}\n\ttab \"q\" 'a' \\ \n"}


NUMBERS = {"role": "assistant", "content": "",
           "tool_calls": [call("call00001", "add", {"numbers": [48.8566969, 123456789.125, 2.0, 1e16, 1e-5]})]}
SPACES = {"role": "user", "content": "\u3000\u00a0 Und morgen? \u2028\u3000"}


def conversations():
    """Name and variables."""
    def case(name, messages, tools=None, prompt=True, **more):
        return name, {"messages": messages, "tools": tools, "documents": None,
                      "add_generation_prompt": prompt, **more}

    yield case("user", [USER])
    yield case("system", [SYSTEM, USER])
    yield case("turns", [SYSTEM, USER, ANSWER, MORE])
    yield case("whole", [USER, ANSWER], prompt=False)
    yield case("reasoning", [USER, REASONED, MORE])
    yield case("inline_reasoning", [USER, INLINE, MORE])
    yield case("thinking", [SYSTEM, USER, REASONED, MORE], enable_thinking=True)
    yield case("no_thinking", [SYSTEM, USER, REASONED, MORE], enable_thinking=False)
    yield case("odd", [SYSTEM, ODD, ANSWER, ODD])
    yield case("tools", [USER], TOOLS)
    yield case("tools_system", [SYSTEM, USER], TOOLS, enable_thinking=False)
    yield case("tool_call", [USER, CALLS], TOOLS, prompt=False)
    yield case("tool_result", [SYSTEM, USER, CALLS, RESULT], TOOLS)
    yield case("tool_answered", [USER, CALLS, RESULT, ANSWER, MORE], TOOLS)
    yield case("numbers", [USER, NUMBERS, {**RESULT, "name": "add", "content": "0.5"}, SPACES], TOOLS)
    yield case("parallel", [SYSTEM, USER, PARALLEL, RESULT, RESULT_2], TOOLS)
    yield case("parallel_answered", [USER, PARALLEL, RESULT, RESULT_2, REASONED, MORE], TOOLS)


def rendered(template, variables):
    try:
        return {"text": template.render(**variables, **LITERALS)}
    except Exception as error:  # pylint: disable=broad-except
        return {"error": str(error)}


def main():
    chat_template_utils.datetime = FixedDay
    folder = ROOT / "build/jinja/models/templates"
    cases = list(conversations())
    lines = [{"case": name, "variables": variables} for name, variables in cases]
    for file in sorted(folder.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        template = chat_template_utils._compile_jinja_template(source)
        for name, variables in cases:
            copy = json.loads(json.dumps(variables))
            lines.append({"template": file.stem, "case": name, **rendered(template, copy)})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    out = ROOT / "tests/data/chat_templates.jsonl.xz"
    out.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{len(lines) - len(cases)} renderings, {len(text)} bytes, {out.stat().st_size} packed")


if __name__ == "__main__":
    main()
