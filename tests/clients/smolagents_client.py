# needs: smolagents[openai]==1.26.0
"""smolagents: the model alone, and an agent that calls tools."""

from common import ANSWER, PARIS, RESULT, WEATHER, holds, run, same, snippet
from smolagents import ToolCallingAgent, tool

exec(snippet("smolagents"))
USER = [{"role": "user", "content": [{"type": "text", "text": PARIS}]}]
asked = []


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city
    """
    asked.append(city)
    return RESULT


def check_chat_and_stream():
    same(model.generate(USER).content, ANSWER)
    same("".join(delta.content or "" for delta in model.generate_stream(USER)), ANSWER)


def check_tool_calls():
    weather = [{"role": "user", "content": [{"type": "text", "text": WEATHER}]}]
    reply = model.generate(weather, tools_to_call_from=[get_weather])
    same(reply.tool_calls[0].function.name, "get_weather")
    holds(str(reply.tool_calls[0].function.arguments), "city")


def check_agent():
    for stream in (False, True):
        agent = ToolCallingAgent([get_weather], model, max_steps=2, verbosity_level=0, stream_outputs=stream)
        assert agent.run(WEATHER) is not None
        assert any(step.tool_calls for step in agent.memory.steps if hasattr(step, "tool_calls")), agent.memory.steps


run(globals())
