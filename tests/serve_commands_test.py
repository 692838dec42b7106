"""Every command of tests/data/serve_commands.txt starts `nibble serve` and gives an answer."""

import json
import os
import shlex
import unittest
import urllib.request
from pathlib import Path

from serving import MODEL, Server

COMMANDS = Path(__file__).resolve().parent / "data" / "serve_commands.txt"


def commands():
    for line in COMMANDS.read_text().splitlines():
        if line and not line.startswith("#"):
            words = shlex.split(line)
            variables = [w for w in words if "=" in w and w.split("=")[0].isupper() and not w.startswith("-")]
            yield dict(v.split("=", 1) for v in variables), words[len(variables):]


class CommandServer(Server):
    """The command as it stands, but for the model and the port."""

    def __init__(self, variables, flags):
        super().__init__()
        flags = list(flags)
        for name, value in (("--port", "0"), ("--host", "127.0.0.1")):
            if name in flags:
                flags[flags.index(name) + 1] = value
            else:
                flags += [name, value]
        self.command = [os.environ["NIBBLE"], "serve", str(MODEL), *flags]
        self.variables = variables

    def __enter__(self):
        os.environ.update(self.variables)
        try:
            return super().__enter__()
        finally:
            for name in self.variables:
                del os.environ[name]


class ServeCommandsTest(unittest.TestCase):
    def test_each_starts_and_answers(self):
        count = 0
        for variables, flags in commands():
            with self.subTest(variables=variables, flags=flags), CommandServer(variables, flags) as server:
                names = [m["id"] for m in server.get("/v1/models")["data"]]
                if "--served-model-name" in flags:
                    self.assertEqual(names[0], flags[flags.index("--served-model-name") + 1])
                body = {"model": names[0], "temperature": 0,
                        "messages": [{"role": "user", "content": "What is the capital of France?"}]}
                request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                                 {"Content-Type": "application/json"})
                with urllib.request.urlopen(request) as answer:
                    reply = json.load(answer)
                self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
                content = reply["choices"][0]["message"]["content"]
                # So small a model may know less with MXFP4 in its dense layers.
                self.assertIn("" if "--mxfp4-layers" in flags else "Paris", content)
                self.assertTrue(content)
                log = "".join(server.log)
                for name in [*variables, *(f for f in flags if f.startswith(("--attention", "--mxfp4-backend")))]:
                    self.assertIn(name, log)  # what means something else here is said at start-up
                count += 1
        self.assertGreaterEqual(count, 9)


if __name__ == "__main__":
    unittest.main()
