# needs: openai-agents==0.24.0
"""OpenAI's agents, over responses and over chat."""

from common import ANSWER, MODEL, PARIS, RESULT, SEEDS, WEATHER, holds, run, same, snippet, wait
from pydantic import BaseModel, Field

exec(snippet("OpenAI Agents"))
MODELS = (model, agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client))
GREEDY = agents.ModelSettings(temperature=0, max_tokens=1500)


@agents.function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city
    """
    return RESULT


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def agent(one, settings=GREEDY, **fields):
    return agents.Agent(name="a", instructions="You are a helpful assistant.", model=one, model_settings=settings, **fields)


def check_runs_and_streams():
    async def stream(one):
        result = agents.Runner.run_streamed(agent(one), PARIS)
        kinds = {event.type async for event in result.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds, kinds
        return result.final_output
    for one in MODELS:
        same(agents.Runner.run_sync(agent(one), PARIS).final_output, ANSWER)
        same(wait(stream(one)), ANSWER)


def check_tools():
    for one in MODELS:
        result = agents.Runner.run_sync(agent(one, tools=[get_weather]), WEATHER)
        holds(result.final_output, "21")
        again = agents.Runner.run_sync(agent(one, tools=[get_weather]), [*result.to_input_list(), {"role": "user", "content": PARIS}])
        assert again.final_output


def check_structured_output():
    for one in MODELS:
        for _ in SEEDS:
            settings = agents.ModelSettings(temperature=1, max_tokens=1500)
            result = agents.Runner.run_sync(agent(one, settings, output_type=Capital), PARIS)
            assert isinstance(result.final_output, Capital), result.final_output


def check_handoffs():
    other = agent(MODELS[1])
    for one in MODELS:
        settings = agents.ModelSettings(temperature=0, tool_choice="required", max_tokens=1500)
        assert agents.Runner.run_sync(agent(one, settings, handoffs=[other]), PARIS).final_output


run(globals())
