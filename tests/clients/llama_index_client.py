# needs: llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1
"""LlamaIndex: chat, streams, tools, an agent, and objects."""

from common import ANSWER, LONG, PARIS, RESULT, SEEDS, WEATHER, holds, raises, run, same, snippet, wait
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

exec(snippet("LlamaIndex"))
asked = []


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return RESULT


class Capital(BaseModel):
    """The capital of a country."""
    city: str = Field(max_length=30)
    sure: bool


def check_chat_and_stream():
    same(llm.chat([ChatMessage(role="user", content=PARIS)]).message.content, ANSWER)
    same("".join(r.delta for r in llm.stream_chat([ChatMessage(role="user", content=PARIS)])), ANSWER)
    same(llm.complete(PARIS).text, ANSWER)


def check_tools():
    tool = FunctionTool.from_defaults(get_weather)
    reply = llm.chat_with_tools([tool], user_msg=WEATHER)
    same(llm.get_tool_calls_from_response(reply)[0].tool_kwargs, {"city": "Paris"})
    reply = llm.predict_and_call([tool], user_msg=WEATHER)
    holds(str(reply), "21")


def check_agent():
    async def ask():
        agent = FunctionAgent(tools=[get_weather], llm=llm, system_prompt="You are a helpful assistant.")
        return str(await agent.run(user_msg=WEATHER))
    asked.clear()
    holds(wait(ask()), "21")
    same(asked, ["Paris"])


def check_structured_output():
    for seed in SEEDS:
        warm = OpenAILike(**{**llm.to_dict(), "temperature": 1.0, "additional_kwargs": {"seed": seed}, "max_tokens": 1500})
        assert isinstance(warm.as_structured_llm(Capital).complete(PARIS).raw, Capital)


def check_errors():
    assert "context" in str(raises(Exception, lambda: llm.complete(LONG)))


run(globals())
