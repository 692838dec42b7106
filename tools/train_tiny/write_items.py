"""Write the first held-out items of every task as JSON lines, for tests that have no generator.

  python write_items.py > ../../tests/data/tiny_gpt_oss_items.jsonl

A line: task, effort, date of the system message ("" for none), messages and tools as an OpenAI
request has them, and expect, by which the reply is scored (item.py: score):
  number  the last integer of the answer      text    the answer contains it as whole words
  values  it contains each of them            json    the answer is JSON of this value
  call    {"name", "arguments"} of the one function called

  python write_items.py --transcripts > ../../tests/data/tiny_gpt_oss_transcripts.txt

writes whole conversations instead, with the answers the model was taught, in Harmony as it reads
them: a text for `nibble eval --specials`.
"""

import json
import sys

import conversations
import harmony

COUNTS = {"arithmetic": 200, "facts": 200, "json": 200, "call": 200}
OTHERS = 40
TRANSCRIPTS = 6  # of each task


def write_transcripts():
    for n in range(TRANSCRIPTS):
        for task in conversations.NAMES:
            item = list(conversations.held_out_items(task, TRANSCRIPTS, seed=2))[n]
            pieces = harmony.render_prompt(item.messages, item.tools, item.effort, item.date)
            text = "".join(text for text, _ in pieces)
            sys.stdout.write(text + harmony.render_target(item.reasoning, item.answer, item.call))


def main():
    if sys.argv[1:] == ["--transcripts"]:
        return write_transcripts()
    for task in conversations.NAMES:
        for item in conversations.held_out_items(task, COUNTS.get(task, OTHERS), seed=1):
            if item.task != task:  # what the date is: a server says its own
                continue
            names = ("task", "effort", "date", "messages", "tools", "expect")
            line = {name: getattr(item, name) for name in names}
            print(json.dumps(line, separators=(",", ":")))


if __name__ == "__main__":
    main()
