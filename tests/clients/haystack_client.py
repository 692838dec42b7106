# needs: haystack-ai==3.4.0
"""Haystack: its generator, streams, tools, an agent, and structured output."""

from common import ANSWER, PARIS, RESULT, SEEDS, WEATHER, holds, run, same, snippet
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from pydantic import BaseModel, Field
from typing import Annotated

exec(snippet("Haystack"))
asked = []


@tool
def get_weather(city: Annotated[str, "The city"]) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return RESULT


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def check_chat_and_stream():
    same(generator.run([ChatMessage.from_user(PARIS)])["replies"][0].text, ANSWER)
    pieces = []
    reply = generator.run([ChatMessage.from_user(PARIS)], streaming_callback=lambda chunk: pieces.append(chunk.content))
    same(reply["replies"][0].text, ANSWER)
    same("".join(pieces), ANSWER)


def check_tools_round_trip():
    messages = [ChatMessage.from_user(WEATHER)]
    reply = generator.run(messages, tools=[get_weather])["replies"][0]
    same(reply.tool_calls[0].arguments, {"city": "Paris"})
    messages += [reply, ChatMessage.from_tool(RESULT, origin=reply.tool_calls[0])]
    holds(generator.run(messages, tools=[get_weather])["replies"][0].text, "21")


def check_agent():
    agent = Agent(chat_generator=generator, tools=[get_weather], system_prompt="You are a helpful assistant.")
    asked.clear()
    holds(agent.run([ChatMessage.from_user(WEATHER)])["last_message"].text, "21")
    same(asked, ["Paris"])


def check_structured_output():
    for seed in SEEDS:
        fields = {"response_format": Capital, "temperature": 1, "seed": seed, "max_completion_tokens": 1500}
        reply = generator.run([ChatMessage.from_user(PARIS)], generation_kwargs=fields)
        Capital.model_validate_json(reply["replies"][0].text)


run(globals())
