# needs: dspy==3.4.1
"""DSPy: predictions through its adapters, a chain of thought, and a stream."""

from typing import Literal

from common import ANSWER, PARIS, SEEDS, holds, run, same, snippet

exec(snippet("DSPy"))


class Capital(dspy.Signature):
    """Name the capital of the country that the question asks for."""
    question: str = dspy.InputField()
    city: str = dspy.OutputField()
    sure: bool = dspy.OutputField()
    kind: Literal["town", "city"] = dspy.OutputField()


def check_model():
    holds(str(lm(PARIS)[0]), ANSWER)
    holds(str(lm(messages=[{"role": "user", "content": PARIS}])[0]), ANSWER)


def check_json_adapter():
    fields = {"city": {"type": "string", "maxLength": 30}, "sure": {"type": "boolean"}, "kind": {"enum": ["town", "city"]}}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema}}  # DSPy sends one for models that it knows
    with dspy.context(adapter=dspy.JSONAdapter()):
        for seed in SEEDS:
            reply = dspy.Predict(Capital)(question=PARIS, config={"temperature": 1.0, "seed": seed, "response_format": form})
            assert isinstance(reply.sure, bool) and reply.kind in ("town", "city"), reply


def check_batches():
    same([str(r[0]) for r in dspy.Parallel(num_threads=4, disable_progress_bar=True)([(lm, {"prompt": PARIS})] * 4)][0][:3],
         str(lm(PARIS)[0])[:3])


run(globals())
