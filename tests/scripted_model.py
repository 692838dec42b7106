"""The chat page of a real server before a model that says what a test wants it to say."""

import asyncio
import contextlib
import json

import aiohttp
from aiohttp import web

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Par'}}

RICH = r"""# The plan

Some **bold**, *slanted*, ~~struck~~ and `code`, a [link](https://example.org/a?b=1&c=2), H~2~O as H<sub>2</sub>O.

1. First
   - nested
     - deeper
   - and back
2. Second

- [x] done
- [ ] to do

| item | price | n |
|:-----|------:|:-:|
| tea  |  3.50 | 2 |
| a & b | 12.00 | 10 |

> A quotation,
> of two lines.

---

## Code

```python
def fib(n: int) -> int:
    '''The n-th number.'''
    return n if n < 2 else fib(n - 1) + fib(n - 2)  # slow
```

```
no language
```

The mean is $\bar{x} = \frac{1}{n}\sum_i x_i$, and it costs $5 or $10, not \(\sqrt{2}\).

$$
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
$$
"""


class ScriptedModel:
    """Answers by the last message: scripts[text](request, send, response), or RICH."""

    def __init__(self, server_url, scripts=()):
        self.server_url, self.scripts = server_url, dict(scripts)
        self.requests = []
        self.stopped = asyncio.Event()
        self.name = "scripted-model"

    async def file(self, request):
        headers = {k: v for k, v in request.headers.items() if k.lower() == "if-none-match"}
        async with aiohttp.ClientSession(auto_decompress=False) as session, \
                session.get(self.server_url + request.path, headers=headers) as answer:
            kept = {k: v for k, v in answer.headers.items()
                    if k in ("Content-Type", "Content-Encoding", "Content-Security-Policy", "ETag", "Cache-Control", "X-Content-Type-Options")}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    async def models(self, _):
        return web.json_response({"object": "list", "data": [{"id": self.name, "object": "model", "max_model_len": 4096}]})

    async def health(self, _):
        return web.json_response({"status": "ok"})

    async def load(self, _):
        self.loads = getattr(self, "loads", 0) + 1
        return web.json_response({"generation_tokens": 120 * self.loads, "prompt_tokens": 40 * self.loads, "requests_running": 1,
                                  "requests_waiting": 0, "kv_cache_usage": 0.12, "prefix_cache_hits": 3, "prefix_cache_queries": 4,
                                  "resident_memory_bytes": 1 << 30})

    async def answer(self, request):
        body = await request.json()
        self.requests.append(body)
        last = body["messages"][-1]
        script = self.scripts.get(last["content"], rich if last["role"] == "user" else after_tool)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

        async def send(finish=None, usage=None, **delta):
            if not response.prepared:
                await response.prepare(request)
            event = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            if usage:
                event = {"choices": [], "usage": usage}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        try:
            instead = await script(request, send, response)
        except (ConnectionError, asyncio.CancelledError):
            self.stopped.set()
            raise
        if instead is not None:
            return instead
        await send(finish="stop")
        await send(usage={"completion_tokens": 42, "prompt_tokens": 10})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def __aenter__(self):
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.get("/", self.file), web.get("/ui/{name}", self.file), web.get("/v1/models", self.models),
                        web.get("/health", self.health), web.get("/load", self.load),
                        web.post("/v1/chat/completions", self.answer)])
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        self.site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await self.site.start()
        self.port = self.site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_):
        with contextlib.suppress(asyncio.CancelledError):
            await self.runner.cleanup()


# ---- Scripts.

def says(*pieces, reasoning=""):
    async def script(_request, send, _response):
        if reasoning:
            await send(reasoning=reasoning)
        for piece in pieces:
            await send(content=piece)
    return script


rich = says(RICH[:100], RICH[100:], reasoning="The user wants everything at once.")
after_tool = says("It is sunny in Paris.")


async def endless(_request, send, _response):
    while True:
        await send(content="more ")
        await asyncio.sleep(0.02)


async def thinking(_request, send, _response):
    await send(reasoning="First, what is asked? A plan for tea, with its price.")
    await asyncio.sleep(60)


async def silent(_request, _send, _response):
    await asyncio.sleep(60)


async def calls(_request, send, _response):
    await send(reasoning="I need the weather.")
    await send(tool_calls=[CALL])
    await send(tool_calls=[{"index": 0, "function": {"arguments": 'is"}'}}])


async def drops(request, send, _response):
    await send(content="half an ans")
    await asyncio.sleep(0.3)
    request.transport.close()
    await asyncio.sleep(60)


def refuses(status, message, **headers):
    async def script(_request, _send, _response):
        return web.json_response({"error": {"message": message}}, status=status, headers=headers)
    return script


async def proxy_page(_request, _send, _response):
    return web.Response(status=502, text="<html><h1>Bad Gateway</h1></html>", content_type="text/html")
