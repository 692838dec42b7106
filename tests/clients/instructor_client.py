# needs: instructor==1.17.0
"""Instructor: every mode that fits the API, objects and partial objects."""

from typing import Literal

from common import MODEL, PARIS, SEEDS, run, snippet
from pydantic import BaseModel, Field

exec(snippet("Instructor"))
MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)


class Capital(BaseModel):
    city: str = Field(max_length=30)
    kind: Literal["town", "city"]
    sure: bool


ASK = {"model": MODEL, "messages": [{"role": "user", "content": PARIS}], "response_model": Capital, "max_completion_tokens": 1500,
       "max_retries": 0}


def check_modes():
    for mode in MODES:
        one = instructor.from_openai(client.client, mode=mode)
        for seed in SEEDS:
            for temperature in (0, 1):
                assert isinstance(one.chat.completions.create(**ASK, temperature=temperature, seed=seed), Capital)


def check_partial():
    schema = instructor.from_openai(client.client, mode=instructor.Mode.JSON_SCHEMA)
    for seed in SEEDS:
        parts = list(schema.chat.completions.create_partial(**ASK, temperature=1, seed=seed))
        assert parts[-1].city is not None and parts[-1].sure is not None, parts


run(globals())
