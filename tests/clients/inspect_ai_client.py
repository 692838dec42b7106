# needs: inspect-ai==0.3.285 openai==3.57.0 anthropic==2.14.0
"""Inspect: an evaluation with a tool, over chat, responses and Anthropic's messages."""

import json

from common import MODEL, URL, holds, run, same, shell, snippet

TASK = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

@tool
def get_weather():
    async def execute(city: str):
        """Get the weather of a city.

        Args:
            city: The city
        """
        return '{"temperature": 21}'
    return execute

@task
def weather():
    samples = [Sample("What is the weather in Paris?", target="21"), Sample("What is the weather in Rome?", target="21")]
    return Task(dataset=samples, solver=[use_tools(get_weather()), generate()], scorer=includes())
'''


def evaluate(command):
    out = shell(f"cat >task.py <<'END'\n{TASK}\nEND\n{command} --display plain --log-format json --log-dir logs\ncat logs/*.json")
    log = json.loads(out[out.index('{\n  "version"'):])
    same(log["status"], "success")
    return log["results"]["scores"][0]["metrics"]["accuracy"]["value"]


def check_chat():
    same(evaluate(snippet("Inspect").rstrip()), 1.0)


def check_responses():
    same(evaluate(snippet("Inspect").rstrip().replace("responses_api=false", "responses_api=true")), 1.0)


def check_messages():
    same(evaluate(f"export ANTHROPIC_BASE_URL={URL} ANTHROPIC_API_KEY=none\n"
                  f"inspect eval task.py --model anthropic/{MODEL} --temperature 0 --max-tokens 1000"), 1.0)


run(globals())
