# needs: openai-codex==0.163.0
"""Codex CLI, the program: it answers, runs a command in its sandbox, and takes errors."""

import json

from common import ANSWER, BIN, PARIS, holds, run, shell, snippet

SETUP = f"""mkdir -p ~/.codex; cat >~/.codex/config.toml <<'END'
{snippet("Codex CLI")}END
git init -q .
codex=$(ls -d {BIN.parent}/lib/python3*/site-packages/codex_cli_bin/bin/codex)
"""


def events(command):
    out = shell(SETUP + command)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def check_answers():
    got = events(f"$codex exec --json --skip-git-repo-check '{PARIS}' </dev/null")
    kinds = [e["type"] for e in got]
    assert kinds[0] == "thread.started" and kinds[-1] == "turn.completed", got
    assert any(e["type"] == "item.completed" and e["item"]["type"] == "agent_message" for e in got), got
    assert got[-1]["usage"]["input_tokens"] > 100, got[-1]


def check_resumes():
    got = events(f"$codex exec --json '{PARIS}' </dev/null; $codex exec resume --last --json 'Again, please.' </dev/null")
    assert [e["type"] for e in got].count("turn.completed") == 2, got


def check_structured_output():
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "sure": {"type": "boolean"}},
              "required": ["city", "sure"], "additionalProperties": False}
    for _ in range(3):
        got = events(f"echo '{json.dumps(schema)}' >s.json; $codex exec --json --output-schema s.json '{PARIS}' </dev/null")
        text = [e["item"]["text"] for e in got if e["type"] == "item.completed" and e["item"]["type"] == "agent_message"][-1]
        assert set(json.loads(text)) == {"city", "sure"}, text


run(globals())
