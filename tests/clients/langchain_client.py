# needs: langchain==1.4.7 langchain-openai==1.7.3 langchain-anthropic==1.7.7
"""LangChain: models of OpenAI's and Anthropic's APIs, and an agent of LangGraph."""

import openai
from common import ANSWER, LONG, MODEL, PARIS, RESULT, SEEDS, URL, WEATHER, holds, raises, run, same, snippet, wait
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

exec(snippet("LangChain"))
MODELS = (model, ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key="none", temperature=0, use_responses_api=True),
          ChatAnthropic(model=MODEL, base_url=URL, api_key="none", temperature=0, max_tokens=1000))


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return RESULT


class Capital(BaseModel):
    """The capital of a country."""
    city: str = Field(max_length=30)
    sure: bool


def check_invoke_stream_and_batch():
    for one in MODELS:
        same(one.invoke(PARIS).text, ANSWER)
        same("".join(chunk.text for chunk in one.stream(PARIS)), ANSWER)
        same([r.text for r in one.batch([PARIS] * 3)], [ANSWER] * 3)

    async def stream():
        return "".join([chunk.text async for chunk in model.astream(PARIS)])
    same(wait(stream()), ANSWER)


def check_tools_round_trip():
    for one in MODELS:
        bound = one.bind_tools([get_weather])
        messages = [HumanMessage(WEATHER)]
        reply = bound.invoke(messages)
        same(reply.tool_calls[0]["args"], {"city": "Paris"})
        messages += [reply, ToolMessage(RESULT, tool_call_id=reply.tool_calls[0]["id"])]
        holds(bound.invoke(messages).text, "21")
        assert one.bind_tools([get_weather], tool_choice="any").invoke(PARIS).tool_calls


def check_agent():
    for one in MODELS:
        messages = create_agent(one, [get_weather]).invoke({"messages": [{"role": "user", "content": WEATHER}]})["messages"]
        same([m.type for m in messages], ["human", "ai", "tool", "ai"])
        holds(messages[-1].text, "21")


def check_structured_output():
    for seed in SEEDS:
        warm = ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key="none", temperature=1, seed=seed, max_completion_tokens=1500)
        for method in ("json_schema", "function_calling"):
            reply = warm.with_structured_output(Capital, method=method).invoke(PARIS)
            assert isinstance(reply, Capital), reply
        assert isinstance(MODELS[2].with_structured_output(Capital).invoke(PARIS), Capital)


def check_history_and_errors():
    holds(model.invoke([HumanMessage("Hello"), AIMessage("Hello!"), HumanMessage(PARIS)]).text, "Paris")
    raises(openai.BadRequestError, lambda: model.invoke(LONG))
    raises(openai.NotFoundError, lambda: ChatOpenAI(model="gpt-5", base_url=URL + "/v1", api_key="none").invoke("Hi"))


def check_stream_left_early():
    for one in MODELS:
        next(iter(one.stream("Count from 1 to 100.")))
    same(model.invoke(PARIS).text, ANSWER)


run(globals())
