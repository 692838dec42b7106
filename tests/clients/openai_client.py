# needs: openai==3.57.0
"""OpenAI's library: chat, completions and responses, plain and streamed."""

import asyncio
import json

import openai
import pydantic
from common import ANSWER, CITY, LONG, MODEL, PARIS, RESULT, SEEDS, URL, WEATHER, holds, raises, run, running, same, snippet, wait

exec(snippet("OpenAI"))
client = client.with_options(max_retries=0)
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY}}


def user(text):
    return [{"role": "user", "content": text}]


def chat(messages, **fields):
    return client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, **fields}).choices[0]


class Capital(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=30)
    inhabitants: int
    sure: bool


def check_chat_and_stream():
    same(chat(user(PARIS)).message.content, ANSWER)
    with client.chat.completions.stream(model=MODEL, messages=user(PARIS), temperature=0) as stream:
        kinds = {event.type for event in stream}
        same(stream.get_final_completion().choices[0].message.content, ANSWER)
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds


def check_several_turns():
    messages = user("What is 12 + 30?")
    first = chat(messages).message
    holds(first.content, "42")
    same(chat([*messages, first, *user(PARIS)]).message.content, ANSWER)


def check_tools_round_trip():
    for seed in SEEDS:
        messages = user(WEATHER)
        first = chat(messages, tools=[TOOL], tool_choice="required", temperature=1, seed=seed)
        same(first.finish_reason, "tool_calls")
        call = first.message.tool_calls[0]
        same(list(json.loads(call.function.arguments)), ["city"])
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        assert chat(messages, tools=[TOOL]).message.content
    first = chat(user(WEATHER), tools=[TOOL])
    same(json.loads(first.message.tool_calls[0].function.arguments), {"city": "Paris"})


def check_structured_output():
    for seed in SEEDS:
        for temperature in (0, 1, 1.5):
            reply = client.chat.completions.parse(model=MODEL, messages=user(PARIS), response_format=Capital, temperature=temperature,
                                                  seed=seed, max_completion_tokens=1500)
            assert isinstance(reply.choices[0].message.parsed, Capital), reply
            reply = client.responses.parse(model=MODEL, input=PARIS, text_format=Capital, temperature=temperature, max_output_tokens=1500)
            assert isinstance(reply.output_parsed, Capital), reply


def check_responses():
    same(client.responses.create(model=MODEL, input=PARIS, temperature=0).output_text, ANSWER)
    with client.responses.stream(model=MODEL, input=PARIS, temperature=0, reasoning={"effort": "high"}) as stream:
        kinds = [event.type for event in stream]
        holds(stream.get_final_response().output_text, "Paris")
    same((kinds[0], kinds[-1]), ("response.created", "response.completed"))
    tool = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
    items = user(WEATHER)
    reply = client.responses.create(model=MODEL, input=items, tools=[tool], tool_choice="required", temperature=0)
    call = reply.output[-1]
    items += [*reply.output, {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    holds(client.responses.create(model=MODEL, input=items, tools=[tool], temperature=0).output_text, "21")


def check_completions():
    reply = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=2)
    holds(reply.choices[0].text, "Paris")
    same(len(reply.choices[0].logprobs.tokens), 4)


def check_logprobs_and_n():
    reply = client.chat.completions.create(model=MODEL, messages=user(PARIS), n=3, logprobs=True, top_logprobs=3, seed=5)
    same(len(reply.choices), 3)
    for choice in reply.choices:
        same("".join(t.token for t in choice.logprobs.content), choice.message.content)


def check_cancelled_streams():
    async def leave():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none") as many:
            async def one(i):
                stream = await many.chat.completions.create(model=MODEL, messages=user(f"Count from 1 to {500 + i}."), stream=True,
                                                            extra_body={"ignore_eos": True, "min_tokens": 2000}, max_tokens=8000)
                await anext(aiter(stream))
                await stream.close()
            await asyncio.gather(*[one(i) for i in range(12)])
            for _ in range(50):
                if running() == 0:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError(f"{running()} sequences go on")
    wait(leave())


def check_errors():
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-5"))
    raises(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-5", messages=user("Hi")))
    same(raises(openai.BadRequestError, lambda: chat(user(LONG))).code, "context_length_exceeded")
    raises(openai.BadRequestError, lambda: chat(user("Hi"), temperature=-1))


run(globals())
