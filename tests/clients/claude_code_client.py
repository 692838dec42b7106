# needs: claude-agent-sdk==0.2.189
"""Claude Code, the program that comes inside its SDK: alone, by the SDK, and through the turns of a session in which it searches
for tools and reads files that a text model cannot take. The small model plans no such turns: a relay between the two says what
the model would have, sends the requests on all the same, and keeps nibble's last answer."""

import http.client
import http.server
import json
import threading
from urllib.parse import urlsplit

from common import BIN, MODEL, PARIS, URL, holds, run, same, shell, snippet, wait

SETUP = f"export DISABLE_AUTOUPDATER=1 DISABLE_TELEMETRY=1 PATH=$(ls -d {BIN.parent}/lib/python3*/site-packages/claude_agent_sdk/_bundled):$PATH\n"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
PDF = "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"


def event(data):
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"


def scripted(number, calls):
    """A streamed message that calls tools."""
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": None,
               "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    text = event({"type": "message_start", "message": message})
    for i, (name, values) in enumerate(calls):
        block = {"type": "tool_use", "id": f"toolu_{number}_{i}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(values)}
        text += event({"type": "content_block_start", "index": i, "content_block": block})
        text += event({"type": "content_block_delta", "index": i, "delta": delta})
        text += event({"type": "content_block_stop", "index": i})
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 5}}
    return (text + event(end) + event({"type": "message_stop"})).encode()


def last_json(out):
    return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])


class Relay:
    """Sends each request to nibble and keeps it with its status; answers with what the script has for it, else with nibble's answer."""

    def __init__(self, script):
        relay, self.requests, script = self, [], iter(script)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server = http.client.HTTPConnection(urlsplit(URL).netloc)
                server.request("POST", self.path, body, {"Content-Type": "application/json"})
                answer = server.getresponse()
                data, kind = answer.read(), answer.getheader("Content-Type")
                relay.requests.append((json.loads(body), answer.status, data))
                calls = next(script, None) if answer.status == 200 else None
                if calls:
                    data, kind = scripted(len(relay.requests), calls), "text/event-stream"
                self.send_response(answer.status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_HEAD(self):
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def check_documented_lines():
    out = shell(f"{SETUP}{snippet('Claude Code')}claude -p '{PARIS}' --output-format json </dev/null")
    assert "Not logged in" not in out and "assumes a context window" not in out, out
    result = last_json(out)
    assert not result["is_error"] and result["usage"]["output_tokens"] > 0, result
    same(list(result["modelUsage"].values())[0]["contextWindow"], 32768)


def check_turns_with_all_kinds_of_blocks():
    files = f"printf '%s' {PNG} | base64 -d >a.png\ncat >a.pdf <<'END'\n{PDF}\nEND\n"
    script = [[("ToolSearch", {"query": "select:WebFetch,NotebookEdit", "max_results": 5})],
              [("Bash", {"command": "echo $((40 + 2))", "description": "adds"}), ("Read", {"file_path": "a.png"})],
              [("Read", {"file_path": "a.pdf"})]]
    with Relay(script) as relay:
        lines = snippet("Claude Code").replace(URL, relay.url)
        out = shell(f"{SETUP}{lines}{files}claude -p 'Look at a.png' --allowedTools Read Bash ToolSearch --output-format json </dev/null")
    statuses = [status for _, status, _ in relay.requests]
    same(set(statuses), {200})
    same(len(statuses), 4)
    last = json.dumps(relay.requests[-1][0]["messages"])
    for kind in ('"tool_reference"', '"tool_result"', "42"):
        holds(last, kind)
    deferred = {t["name"] for t in relay.requests[-1][0]["tools"] if t.get("defer_loading")}
    assert {"WebFetch", "NotebookEdit"} <= deferred, deferred
    assert not last_json(out)["is_error"], out


def check_images_of_the_user():
    message = {"type": "user", "message": {"role": "user", "content": [
        {"type": "text", "text": PARIS}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]}}
    again = {"type": "user", "message": {"role": "user", "content": "And now?"}}
    out = shell(f"{SETUP}{snippet('Claude Code')}claude -p --input-format stream-json --output-format stream-json --verbose",
                stdin=f"{json.dumps(message)}\n{json.dumps(again)}\n")
    results = [json.loads(line) for line in out.splitlines() if line.startswith('{"') and '"type":"result"' in line]
    assert results and not any(r["is_error"] for r in results), out[-2000:]


def check_sdk():
    import claude_agent_sdk as sdk
    import os
    lines = shell(f"{snippet('Claude Code')}env").splitlines()
    environment = dict(line.split("=", 1) for line in lines if line.startswith(("ANTHROPIC_", "CLAUDE_")))

    @sdk.tool("get_weather", "Get the weather of a city.", {"city": str})
    async def get_weather(args):
        return {"content": [{"type": "text", "text": '{"temperature": 21}'}]}

    server = sdk.create_sdk_mcp_server("home", tools=[get_weather])
    options = sdk.ClaudeAgentOptions(env={**os.environ, **environment}, tools=[], mcp_servers={"home": server}, max_turns=3,
                                     allowed_tools=["mcp__home__get_weather"], system_prompt="You are a helpful assistant.")

    async def ask():
        return [m async for m in sdk.query(prompt=PARIS, options=options)]
    messages = wait(ask())
    assert isinstance(messages[-1], sdk.ResultMessage) and not messages[-1].is_error, messages


run(globals())
