# needs: shell-gpt==1.5.1 click==8.5.1
"""ShellGPT: answers, a chat of several turns, what is piped in, and a shell command."""

from common import ANSWER, PARIS, holds, run, shell, snippet

SETUP = snippet("ShellGPT") + "export PRETTIFY_MARKDOWN=false\n"


def check_answers():
    holds(shell(f"{SETUP} sgpt --no-cache --temperature 0 '{PARIS}' </dev/null"), ANSWER)
    assert shell(f"{SETUP} echo '{PARIS}' | sgpt --no-cache --temperature 0").strip()
    assert shell(f"{SETUP} sgpt --no-cache --no-interaction --temperature 0 --shell 'List files' </dev/null").strip()


def check_chat():
    out = shell(f"{SETUP} sgpt --temperature 0 --chat c 'What is 12 + 30?' </dev/null; sgpt --temperature 0 --chat c '{PARIS}' </dev/null")
    holds(out, "42")
    holds(out, "Paris")


run(globals())
