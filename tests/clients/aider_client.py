# needs: aider-chat==0.86.2
"""aider: it answers about a repository, and survives a model that cannot edit."""

from common import PARIS, holds, run, shell, snippet

REPOSITORY = "git init -q .; git config user.email a@b; git config user.name a; echo 'print(1)' >a.py; git add .; git commit -qm a\n"
FLAGS = "--no-check-update --no-analytics --yes-always --no-pretty --no-auto-commits --no-gitignore"


def check_ask():
    for stream in ("--stream", "--no-stream"):
        command = snippet("aider").rstrip() + f" {FLAGS} {stream} --chat-mode ask --map-tokens 0 --message '{PARIS}' a.py"
        out = shell(REPOSITORY + command)
        holds(out, "Tokens:")
        assert "APIError" not in out and "BadRequest" not in out, out


def check_code():
    command = snippet("aider").rstrip() + f" {FLAGS} --edit-format whole --message 'Print 2 instead of 1.' a.py"
    out = shell(REPOSITORY + command + "\ngit status --short >/dev/null")
    holds(out, "Tokens:")
    assert "APIError" not in out and "BadRequest" not in out, out


run(globals())
