"""Render OpenAI-shaped messages in Qwen's chat format, as models/nibble-tiny-qwen3-next/chat_template.jinja
does: <|im_start|> turns, reasoning in <think>, calls in <tool_call> as JSON.

Pieces are those of harmony.py: (text, loss weight), which meet at special tokens only, but for the
prompt's end: a line feed behind <think>, as the model finds it there.
"""

import json
import re

from harmony import HISTORY_WEIGHT, PROMPT_WEIGHT

END, PAD = "<|im_end|>", "<|endoftext|>"
STOPS = (END, PAD)
SPECIALS = [PAD, "<|im_start|>", END, "<tool_call>", "</tool_call>", "<tool_response>",
            "</tool_response>", "<think>", "</think>"]
TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def system_message(effort, date, instructions, tools):
    text = (f"Current date: {date}\n" if date else "") + f"Reasoning: {effort}"
    text += f"\n\n{instructions}" if instructions else ""
    if tools:
        text += "\n\n" + TOOLS_HEAD + "".join("\n" + json.dumps(tool) for tool in tools) + TOOLS_TAIL
    return f"<|im_start|>system\n{text}<|im_end|>"


def call_text(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _assistant(message, with_reasoning):
    text = "\n<|im_start|>assistant\n"
    if with_reasoning and message.get("reasoning"):
        text += f"<think>\n{message['reasoning']}\n</think>\n\n"
    parts = [message["content"]] if message.get("content") else []
    calls = [call["function"] for call in message.get("tool_calls", [])]
    parts += [call_text(call["name"], call["arguments"]) for call in calls]
    return text + "\n".join(parts) + END


def render_prompt(messages, tools, effort, date, thinks=True):
    """Pieces up to and including <think>; where the model is not to think, its end."""
    instructions = None
    if messages and messages[0]["role"] in ("system", "developer"):
        instructions, messages = messages[0]["content"], messages[1:]
    pieces = [(system_message(effort, date, instructions, tools), PROMPT_WEIGHT)]
    last_question = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    role_before = None
    for i, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "user":
            pieces.append((f"\n<|im_start|>user\n{content}<|im_end|>", PROMPT_WEIGHT))
        elif role == "assistant":
            pieces.append((_assistant(message, i > last_question), HISTORY_WEIGHT))
        elif role == "tool":
            assert role_before != "tool", "the tasks have no calls side by side"
            text = f"\n<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>"
            pieces.append((text, PROMPT_WEIGHT))
        role_before = role
    think = "<think>\n" if thinks else "<think>\n\n</think>\n\n"
    pieces.append(("\n<|im_start|>assistant\n" + think, PROMPT_WEIGHT))
    return pieces


def training_options(rng):
    """As harmony's: some conversations are without thoughts."""
    options = {"thinks": rng.random() >= 0.1}
    return options, options


def render_target(reasoning, answer=None, call=None, thinks=True):
    """What the model is to sample behind that: its reasoning, then the answer or a call."""
    text = f"{reasoning}\n</think>\n\n" if thinks else ""
    return text + (call_text(call["name"], call["arguments"]) if call else answer) + END


def parse(text):
    """The sampled text as {"reasoning", "content", "call"}."""
    reasoning, found, rest = text.partition("</think>")
    if not found:
        reasoning, rest = "", text
    call = re.search(r"<tool_call>\n(.*?)\n</tool_call>", rest, re.S)
    called = None
    if call:
        try:
            made = json.loads(call.group(1))
            called = {"name": made["name"], "arguments": json.dumps(made["arguments"])}
        except (ValueError, KeyError, TypeError):
            pass
    content = "" if call or not rest.endswith(END) else rest[: -len(END)].strip("\n")
    return {"reasoning": reasoning.strip("\n"), "content": content, "call": called}
