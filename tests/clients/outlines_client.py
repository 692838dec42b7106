# needs: outlines[openai]==1.3.3
"""Outlines: types, choices, patterns and grammars that the server enforces."""

import re
from typing import Literal

from common import ANSWER, PARIS, SEEDS, run, same, snippet
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field

exec(snippet("Outlines"))


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def check_plain_and_stream():
    same(model(PARIS, temperature=0), ANSWER)
    same("".join(model.stream(PARIS, temperature=0)), ANSWER)


def check_forms():
    for seed in SEEDS:
        more = {"temperature": 1, "seed": seed, "max_tokens": 1500}
        Capital.model_validate_json(model(PARIS, Capital, **more))
        assert model(PARIS, Literal["Paris", "London"], **more) in ("Paris", "London")
        assert re.fullmatch(r"[A-Z][a-z]{2,9}", model(PARIS, Regex(r"[A-Z][a-z]{2,9}"), **more))
        assert model(PARIS, CFG('root ::= "yes" | "no"'), **more) in ("yes", "no")


run(globals())
