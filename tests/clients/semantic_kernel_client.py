# needs: semantic-kernel==1.45.0
"""Semantic Kernel: chat, streams, functions that it calls by itself, structured output."""

from common import ANSWER, PARIS, RESULT, SEEDS, WEATHER, holds, run, same, snippet, wait
from pydantic import BaseModel, Field
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

exec(snippet("Semantic Kernel"))
asked = []


class Plugin:
    @kernel_function(description="Get the weather of a city.")
    def get_weather(self, city: str) -> str:
        asked.append(city)
        return RESULT


class Capital(BaseModel):
    city: str = Field(max_length=30)
    sure: bool


def history(text):
    chat = ChatHistory()
    chat.add_user_message(text)
    return chat


def check_chat_and_stream():
    settings = OpenAIChatPromptExecutionSettings(temperature=0)
    same(str(wait(service.get_chat_message_content(history(PARIS), settings))), ANSWER)

    async def stream():
        return "".join([str(c) async for c in service.get_streaming_chat_message_content(history(PARIS), settings)])
    same(wait(stream()), ANSWER)


def check_functions():
    kernel = Kernel()
    kernel.add_plugin(Plugin(), "home")
    for behaviour in (FunctionChoiceBehavior.Auto(), FunctionChoiceBehavior.Required()):
        asked.clear()
        settings = OpenAIChatPromptExecutionSettings(temperature=0, function_choice_behavior=behaviour)
        reply = wait(service.get_chat_message_content(history(WEATHER), settings, kernel=kernel))
        assert asked and str(reply) is not None, reply


def check_structured_output():
    for seed in SEEDS:
        settings = OpenAIChatPromptExecutionSettings(temperature=1, seed=seed, response_format=Capital, max_completion_tokens=1500)
        Capital.model_validate_json(str(wait(service.get_chat_message_content(history(PARIS), settings))))


run(globals())
