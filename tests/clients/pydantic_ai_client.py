# needs: pydantic-ai-slim[openai,anthropic]==2.68.0
"""Pydantic AI: models of chat, responses and Anthropic's messages."""

from common import ANSWER, MODEL, PARIS, RESULT, SEEDS, URL, WEATHER, holds, raises, run, same, snippet, wait
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput, exceptions
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider

exec(snippet("Pydantic AI"))
MODELS = (model, OpenAIResponsesModel(MODEL, provider=provider),
          AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none")))
GREEDY = {"temperature": 0, "max_tokens": 1500}


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def check_runs_and_streams():
    async def stream(one):
        async with Agent(one, model_settings=GREEDY).run_stream(PARIS) as result:
            return "".join([piece async for piece in result.stream_text(delta=True)])
    for one in MODELS:
        same(Agent(one, model_settings=GREEDY).run_sync(PARIS).output, ANSWER)
        same(wait(stream(one)), ANSWER)


def check_tools_and_turns():
    for one in MODELS:
        asked = []
        agent = Agent(one, model_settings=GREEDY)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Get the weather of a city."""
            asked.append(city)
            return RESULT

        result = agent.run_sync(WEATHER)
        same(asked, ["Paris"])
        holds(result.output, "21")
        assert agent.run_sync(PARIS, message_history=result.all_messages()).output


def check_structured_output():
    for one in MODELS[:2]:
        for output in (NativeOutput(Capital), ToolOutput(Capital)):
            for seed in SEEDS:
                settings = {"temperature": 1, "seed": seed, "max_tokens": 1500}
                result = Agent(one, output_type=output, model_settings=settings).run_sync(PARIS)
                assert isinstance(result.output, Capital), result.output


def check_errors():
    for one in MODELS:
        agent = Agent(one, model_settings={"temperature": -1})
        same(raises(exceptions.ModelHTTPError, lambda: agent.run_sync("Hi")).status_code, 400)


run(globals())
