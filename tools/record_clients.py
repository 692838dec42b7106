#!/usr/bin/env python3
"""Records what real clients send, for tests/client_requests_test.cc to replay.

Runs LangChain, LiteLLM, lm-eval and the OpenAI and Anthropic SDKs against a `nibble serve` of the
shipped model through a proxy, checks what each of them understood of the answers, and writes each
request as it was sent, with what its answer must hold, to tests/data/recorded_clients.jsonl.

  python3 -m venv V && V/bin/pip install langchain-openai litellm lm-eval openai anthropic
  NIBBLE=build/cpu/nibble V/bin/python tools/record_clients.py
"""
import http.client
import http.server
import importlib.metadata
import json
import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from serving import WEATHER, Server  # noqa: E402

PARIS = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
SECRET = {"authorization", "x-api-key"}  # nothing of use, but nothing to keep either
rows = []
current = {}  # client and expect of the requests that come


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    port = 0  # of nibble

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", Proxy.port)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        data = answer.read()
        if not any((r["client"], r["path"]) == (current["client"], self.path) for r in rows):  # one of each kind
            kept = {k.lower(): v for k, v in headers.items() if k.lower() not in SECRET | {"content-length"}}
            rows.append({**current, "method": self.command, "path": self.path, "headers": kept,
                         "body": body.decode(), "status": answer.status})
            if not self.path.startswith("/v1/"):  # the tokenizer, on the way
                rows[-1]["expect"] = []
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, *_):
        pass


def say(package, what, *expect):
    """The requests that follow are of this client; their answers hold these texts."""
    current.update(client=f"{package} {importlib.metadata.version(package)}: {what}", expect=list(expect))


def check(condition, what):
    if not condition:
        sys.exit(f"{current['client']}: {what}")


def openai_sdk(url):
    import openai
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": PARIS}]
    say("openai", "chat.completions", ANSWER)
    reply = client.chat.completions.create(model="tiny", messages=messages, temperature=0)
    check(reply.choices[0].message.content == ANSWER, reply)
    say("openai", "chat.completions, stream", '"finish_reason":"stop"', "data: [DONE]")
    text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, stream=True, stream_options={"include_usage": True}) if c.choices)
    check(text == ANSWER, text)
    say("openai", "tools", '"name":"get_weather"', '"finish_reason":"tool_calls"')
    call = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER],
        temperature=0).choices[0].message.tool_calls[0]
    check(json.loads(call.function.arguments) == {"city": "Paris"}, call)
    say("openai", "responses, stream", "event: response.created", "event: response.completed", ANSWER)
    with client.responses.stream(model="tiny", input=PARIS, temperature=0) as stream:
        for _ in stream:
            pass
        check(stream.get_final_response().output_text == ANSWER, "other text")


def anthropic_sdk(url):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    ask = {"model": "tiny", "max_tokens": 400, "extra_body": {"temperature": 0},
           "messages": [{"role": "user", "content": PARIS}]}
    say("anthropic", "messages", ANSWER, '"stop_reason":"end_turn"')
    check(client.messages.create(**ask).content[-1].text == ANSWER, "other text")
    say("anthropic", "messages, stream", "event: message_start", "event: content_block_delta", "event: message_stop")
    with client.messages.stream(**ask) as stream:
        check("".join(stream.text_stream) == ANSWER, "other text")
    say("anthropic", "tools", '"type":"tool_use"', '"name":"get_weather"')
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    reply = client.messages.create(**{**ask, "tools": [tool], "tool_choice": {"type": "any"}})
    check(reply.content[-1].type == "tool_use", reply)
    say("anthropic", "count_tokens", '"input_tokens":')
    check(client.messages.count_tokens(model="tiny", messages=ask["messages"]).input_tokens > 10, "few tokens")


def langchain(url):
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel
    model = ChatOpenAI(model="tiny", base_url=url + "/v1", api_key="none", temperature=0, max_retries=0)
    say("langchain-openai", "invoke", ANSWER)
    check(model.invoke(PARIS).content == ANSWER, "other text")
    say("langchain-openai", "stream", "data: [DONE]")
    check("".join(c.text if isinstance(c.text, str) else c.text() for c in model.stream(PARIS)) == ANSWER, "other text")
    say("langchain-openai", "bind_tools", '"name":"get_weather"')
    reply = model.bind_tools([WEATHER]).invoke("What is the weather in Paris?")
    check(reply.tool_calls[0]["args"] == {"city": "Paris"}, reply)

    class Capital(BaseModel):
        city: str

    say("langchain-openai", "with_structured_output", "city")
    reply = model.bind(max_tokens=600).with_structured_output(Capital, method="json_schema").invoke(PARIS)
    check(isinstance(reply, Capital), reply)


def litellm(url):
    import litellm as lite
    lite.suppress_debug_info = True
    ask = {"messages": [{"role": "user", "content": PARIS}], "temperature": 0, "api_base": url + "/v1", "api_key": "none"}
    for provider in ("hosted_vllm", "openai"):
        say("litellm", f"{provider}/ completion", ANSWER)
        check(lite.completion(model=f"{provider}/tiny", **ask).choices[0].message.content == ANSWER, "other text")
    say("litellm", "stream", "data: [DONE]")
    text = "".join(c.choices[0].delta.content or "" for c in lite.completion(model="hosted_vllm/tiny", stream=True, **ask))
    check(text == ANSWER, text)
    say("litellm", "text_completion", '"object":"text_completion"')
    lite.text_completion(model="text-completion-openai/tiny", prompt="The capital of", max_tokens=4, temperature=0,
                         api_base=url + "/v1", api_key="none")
    say("litellm", "a window exceeded", "context_length_exceeded")
    try:
        lite.completion(model="hosted_vllm/tiny", **{**ask, "messages": [{"role": "user", "content": "word " * 9000}]})
        check(False, "no error")
    except lite.ContextWindowExceededError:
        rows[-1]["body"] = rows[-1]["body"].replace("word " * 8900, "LONG")  # the test puts it back


def lm_eval(url):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
    say("lm-eval", "local-completions: looks for a remote tokenizer")
    model = LocalCompletionsAPI(model="tiny", base_url=url + "/v1/completions", max_length=1024)
    check(model.tokenizer_backend == "remote", f"tokenizer {model.tokenizer_backend}")
    say("lm-eval", "local-completions: loglikelihood", '"token_logprobs":[null,-', '"top_logprobs"')
    pairs = [("The capital of France is", f" {city}") for city in ("Paris", "London", "Berlin", "a bridge")]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    scores = [score for score, _ in model.loglikelihood(requests)]
    print("log-likelihoods:", dict(zip((city for _, city in pairs), scores)))
    check(max(scores) == scores[0], scores)
    say("lm-eval", "local-completions: generate_until", '"text":')
    requests = [Instance("generate_until", {}, ("The capital of France is", {"until": ["\n"], "max_gen_toks": 8}), 0)]
    check("Paris" in model.generate_until(requests)[0], "no Paris")
    say("lm-eval", "local-chat-completions: generate_until", ANSWER)
    chat = LocalChatCompletion(model="tiny", base_url=url + "/v1/chat/completions", max_length=1024)
    text = json.dumps([{"role": "user", "content": PARIS}])
    from lm_eval.models.api_models import JsonChatStr
    requests = [Instance("generate_until", {}, (JsonChatStr(text), {"until": ["\n\n"], "max_gen_toks": 300}), 0)]
    check(chat.generate_until(requests)[0] == ANSWER, "other text")


def main():
    with Server("--exact", "--served-model-name", "tiny") as server:
        Proxy.port = server.port
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}"
        for client in (openai_sdk, anthropic_sdk, langchain, litellm, lm_eval):
            client(url)
        proxy.shutdown()
    with open(ROOT / "tests/data/recorded_clients.jsonl", "w") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{len(rows)} requests of {len({r['client'] for r in rows})} kinds")


if __name__ == "__main__":
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    main()
