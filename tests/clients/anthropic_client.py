# needs: anthropic==2.14.0
"""Anthropic's library: messages, plain and streamed, and its tool runner."""

import json

import anthropic
import pydantic
from common import ANSWER, CITY, LONG, MODEL, PARIS, RESULT, SEEDS, WEATHER, holds, raises, run, same, snippet

exec(snippet("Anthropic"))
client = client.with_options(max_retries=0)
GREEDY = {"temperature": 0}
TOOL = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": CITY}


def user(content):
    return [{"role": "user", "content": content}]


def ask(messages, **fields):
    return client.messages.create(**{"model": MODEL, "max_tokens": 1000, "messages": messages, "extra_body": GREEDY, **fields})


class Capital(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=30)
    sure: bool


def check_message_and_stream():
    same(ask(user(PARIS)).content[-1].text, ANSWER)
    with client.messages.stream(model=MODEL, max_tokens=1000, messages=user(PARIS), extra_body=GREEDY,
                                thinking={"type": "adaptive"}) as stream:
        same("".join(stream.text_stream), ANSWER)
        same([b.type for b in stream.get_final_message().content], ["thinking", "text"])


def check_several_turns_and_prefill():
    first = ask(user("What is 12 + 30?"))
    holds(first.content[-1].text, "42")
    messages = [*user("What is 12 + 30?"), {"role": "assistant", "content": first.content}, *user(PARIS)]
    same(ask(messages).content[-1].text, ANSWER)
    holds(ask([*user(PARIS), {"role": "assistant", "content": "The capital of France is"}]).content[-1].text, "Paris")


def check_tools_round_trip():
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}):
        messages = user(WEATHER)
        first = ask(messages, tools=[TOOL], tool_choice=choice)
        same(first.stop_reason, "tool_use")
        call = first.content[-1]
        same(call.input, {"city": "Paris"})
        messages += [{"role": "assistant", "content": first.content},
                     *user([{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}])]
        holds(ask(messages, tools=[TOOL]).content[-1].text, "21")


def check_tool_runner():
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: The city
        """
        asked.append(city)
        return RESULT

    runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=1000, messages=user(WEATHER), tools=[get_weather],
                                              extra_body=GREEDY)
    holds(runner.until_done().content[-1].text, "21")
    same(asked, ["Paris"])


def check_structured_output():
    for temperature in (0, 1, 1, 1):
        reply = client.messages.parse(model=MODEL, max_tokens=1500, messages=user(PARIS), output_format=Capital,
                                      extra_body={"temperature": temperature})
        assert isinstance(reply.parsed_output, Capital), reply


def check_blocks_that_a_text_model_cannot_take():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Some notes."}}
    assert ask(user([image, text, {"type": "text", "text": PARIS}])).content
    deferred = {**TOOL, "name": "later", "defer_loading": True}
    call = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "t1",
              "content": [image, {"type": "tool_reference", "tool_name": "later"}, {"type": "text", "text": RESULT}]}
    for tools in ([TOOL], [TOOL, deferred]):
        reply = client.beta.messages.create(model=MODEL, max_tokens=1000, tools=tools, extra_body=GREEDY, messages=[
            *user(WEATHER), {"role": "assistant", "content": [call]}, *user([result])])
        assert reply.content


def check_cancelled_streams():
    for _ in SEEDS:
        with client.messages.stream(model=MODEL, max_tokens=8000, messages=user(PARIS),
                                    extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
    same(ask(user(PARIS)).content[-1].text, ANSWER)


def check_count_tokens_and_errors():
    assert client.messages.count_tokens(model=MODEL, messages=user(PARIS)).input_tokens > 10
    raises(anthropic.NotFoundError, lambda: ask(user("Hi"), model="claude-opus-5"))
    holds(str(raises(anthropic.BadRequestError, lambda: ask(user(LONG)))), "token")
    raises(anthropic.BadRequestError, lambda: ask(user("Hi"), tool_choice={"type": "any"}))


run(globals())
