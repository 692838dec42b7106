# needs: llm==0.36
"""Simon Willison's llm: prompts, a conversation, schemas and tools, from the command line."""

import json

from common import ANSWER, PARIS, WEATHER, holds, run, same, shell, snippet

SETUP = f"""mkdir -p llm; export LLM_USER_PATH=$PWD/llm
cat >llm/extra-openai-models.yaml <<'END'
{snippet("llm")}END
"""


def check_prompts():
    same(shell(f"{SETUP} llm -m nibble -o temperature 0 '{PARIS}'").strip(), ANSWER)
    same(shell(f"{SETUP} llm -m nibble -o temperature 0 --no-stream '{PARIS}'").strip(), ANSWER)
    holds(shell(f"{SETUP} llm -m nibble -o temperature 0 -s 'You are a helpful assistant.' 'What is 12 + 30?'"), "42")


def check_conversation():
    out = shell(f"{SETUP} llm -m nibble -o temperature 0 'What is 12 + 30?' >/dev/null; llm -c -o temperature 0 '{PARIS}'")
    holds(out, "Paris")


def check_schema():
    for seed in (1, 2, 3):
        out = shell(f"{SETUP} llm -m nibble -o seed {seed} -o max_tokens 1500 --schema 'city, inhabitants int' '{PARIS}'")
        same(set(json.loads(out)), {"city", "inhabitants"})


def check_tools():
    function = "def get_weather(city: str) -> str:\n    'Get the weather of a city.'\n    return '{\"temperature\": 21}'\n"
    out = shell(f"{SETUP} cat >f.py <<'END'\n{function}END\nllm -m nibble -o temperature 0 --no-stream --functions f.py --td '{WEATHER}'")
    holds(out, "get_weather")
    holds(out.replace('{"temperature": 21}', ""), "21")


run(globals())
