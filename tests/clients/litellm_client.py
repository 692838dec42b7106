# needs: litellm==1.110.2 mcp==2.1.1
"""LiteLLM: its providers for vLLM, OpenAI and Anthropic, and its router."""

import json

import litellm
from common import ANSWER, CITY, LONG, MODEL, PARIS, RESULT, SEEDS, URL, WEATHER, holds, raises, run, same, snippet, wait
from pydantic import BaseModel, Field

exec(snippet("LiteLLM"))
litellm.suppress_debug_info = True
PROVIDERS = (nibble, {**nibble, "model": f"openai/{MODEL}"}, {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none"})
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY}}


def user(text):
    return [{"role": "user", "content": text}]


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def check_completion_and_stream():
    for provider in PROVIDERS:
        ask = {**provider, "messages": user(PARIS), "temperature": 0, "max_tokens": 1000}
        same(litellm.completion(**ask).choices[0].message.content, ANSWER)
        chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
        same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), ANSWER)
        same(litellm.stream_chunk_builder(chunks).choices[0].message.content, ANSWER)


def check_tools_round_trip():
    for provider in PROVIDERS:
        ask = {**provider, "tools": [TOOL], "temperature": 0, "max_tokens": 1000}
        first = litellm.completion(**ask, messages=user(WEATHER)).choices[0]
        same(first.finish_reason, "tool_calls")
        call = first.message.tool_calls[0]
        same(json.loads(call.function.arguments), {"city": "Paris"})
        messages = [*user(WEATHER), first.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        holds(litellm.completion(**ask, messages=messages).choices[0].message.content, "21")


def check_structured_output():
    for provider in PROVIDERS[:2]:
        for seed in SEEDS:
            reply = litellm.completion(**provider, messages=user(PARIS), response_format=Capital, temperature=1, seed=seed, max_tokens=1500)
            Capital.model_validate_json(reply.choices[0].message.content)


def check_other_apis():
    same(litellm.responses(**PROVIDERS[1], input=PARIS, temperature=0).output[-1].content[0].text, ANSWER)
    reply = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="The capital of France is", max_tokens=4, temperature=0,
                                    api_base=URL + "/v1", api_key="none")
    holds(reply.choices[0].text, "Paris")
    reply = wait(litellm.anthropic_messages(**PROVIDERS[2], messages=user(PARIS), max_tokens=1000, temperature=0))
    same(reply["content"][-1]["text"], ANSWER)


def check_router():
    router = litellm.Router(model_list=[{"model_name": "m", "litellm_params": nibble},
                                        {"model_name": "m", "litellm_params": {**nibble, "api_base": "http://127.0.0.1:9/v1"}}],
                            num_retries=20, routing_strategy="simple-shuffle")  # each is drawn: a few would all meet the dead one at times
    for _ in range(4):
        same(router.completion(model="m", messages=user(PARIS), temperature=0).choices[0].message.content, ANSWER)


def check_errors_and_cancels():
    raises(litellm.ContextWindowExceededError, lambda: litellm.completion(**nibble, messages=user(LONG)))
    raises(litellm.NotFoundError, lambda: litellm.completion(**{**nibble, "model": "hosted_vllm/other"}, messages=user("Hi")))
    raises(litellm.BadRequestError, lambda: litellm.completion(**nibble, messages=user("Hi"), temperature=-1))
    next(iter(litellm.completion(**nibble, messages=user("Count from 1 to 100."), stream=True)))


run(globals())
