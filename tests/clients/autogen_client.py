# needs: autogen-ext[openai]==0.7.5 autogen-agentchat==0.7.5
"""AutoGen: its model client, structured output, and an agent with a tool."""

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import CreateResult, UserMessage
from common import ANSWER, PARIS, RESULT, SEEDS, WEATHER, holds, run, same, snippet, wait
from pydantic import BaseModel, Field

exec(snippet("AutoGen"))
USER = [UserMessage(content=PARIS, source="user")]


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def check_create_and_stream():
    same(wait(model.create(USER)).content, ANSWER)

    async def stream():
        pieces = [piece async for piece in model.create_stream(USER)]
        assert isinstance(pieces[-1], CreateResult)
        return pieces[-1].content
    same(wait(stream()), ANSWER)


def check_structured_output():
    for seed in SEEDS:
        reply = wait(model.create(USER, json_output=Capital, extra_create_args={"temperature": 1, "seed": seed, "max_tokens": 1500}))
        Capital.model_validate_json(reply.content)


def check_agent():
    asked = []

    async def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return RESULT

    agent = AssistantAgent("a", model_client=model, tools=[get_weather], reflect_on_tool_use=True,
                           system_message="You are a helpful assistant.")
    result = wait(agent.run(task=WEATHER))
    same(asked, ["Paris"])
    holds(result.messages[-1].content, "21")
    assert wait(agent.run(task=PARIS)).messages[-1].content


def check_cancellation():
    async def leave():
        token = CancellationToken()
        async for _ in model.create_stream([UserMessage(content="Count from 1 to 100.", source="user")], cancellation_token=token):
            token.cancel()
            break
    wait(leave())
    same(wait(model.create(USER)).content, ANSWER)


run(globals())
