"""The chat page in headless Chromium, over its debugging protocol. Skipped where there is no Chromium: apt-get install
chromium."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import aiohttp
from aiohttp import web
from serving import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab. Everything it complains of (script errors, blocked loads) is in `complaints`."""

    def __init__(self, socket):
        self.socket, self.count, self.complaints = socket, 0, []

    async def call(self, method, **params):
        self.count += 1
        await self.socket.send_json({"id": self.count, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(message["params"]))
            if message.get("id") == self.count:
                return message.get("result", {})

    async def run(self, script):
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def wait(self, condition):
        for _ in range(600):
            if await self.run(condition):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never came true: {condition}; the page: {await self.run('document.body.innerText')}")

    async def ask(self, text):
        await self.wait("document.getElementById('send').textContent === 'Send'")  # not Stop
        await self.run(f"document.getElementById('input').value = {json.dumps(text)};"
                       "document.getElementById('input').dispatchEvent(new Event('input'));"
                       "document.getElementById('send').click()")


HOSTILE = ("<img src=x onerror='window.stolen=1'><script>window.stolen=1</script> [a](javascript:window.stolen=1)"
           " [b](data:text/html,x) ![c](http://127.0.0.1:1/c.png) **<svg onload='window.stolen=1'>**"
           "\n```html\n</code></pre><img src=x onerror='window.stolen=1'>\n```\n")


class HostileModel:
    """The page of a real server before a model that says the worst: markup everywhere, calls, no end."""

    def __init__(self, server_url):
        self.server_url = server_url
        self.stopped = asyncio.Event()

    async def page(self, _):
        async with aiohttp.ClientSession() as session, session.get(self.server_url + "/") as page:
            return web.Response(body=await page.read(), content_type="text/html", charset="utf-8", headers={
                "Content-Security-Policy": page.headers["Content-Security-Policy"]})

    async def models(self, _):
        return web.json_response({"object": "list", "data": [{"id": HOSTILE, "object": "model"}]})

    async def answer(self, request):
        question = (await request.json())["messages"][-1]["content"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(**delta):
            event = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        if question == "endless":
            try:
                while True:
                    await send(content="more ")
                    await asyncio.sleep(0.02)
            except ConnectionError:
                self.stopped.set()
            return response
        await send(reasoning=HOSTILE)
        for piece in (HOSTILE[:40], HOSTILE[40:]):
            await send(content=piece)
        await send(tool_calls=[{"index": 0, "id": "c", "function": {"name": HOSTILE, "arguments": '{"city": "Par'}}])
        await send(tool_calls=[{"index": 0, "function": {"arguments": 'is<img src=x onerror=window.stolen=1>"}'}}])
        await response.write(b"data: [DONE]\n\n")
        return response

    async def __aenter__(self):
        app = web.Application()
        app.add_routes([web.get("/", self.page), web.get("/v1/models", self.models),
                        web.post("/v1/chat/completions", self.answer)])
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


@unittest.skipUnless(CHROMIUM, "there is no Chromium here")
class PageTest(unittest.TestCase):
    def drive(self, act):
        """Calls act(page, url of a nibble) with a fresh browser."""
        # Processes of the browser may write into the profile until they are gone.
        with Server() as server, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = subprocess.Popen(
                [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
                 "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"],
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
            try:
                for line in browser.stderr:
                    if found := re.search(r"DevTools listening on ws://([^/]+)/", line):
                        break
                else:
                    self.fail("Chromium did not start")
                asyncio.run(self.with_page(found[1], server.url, act))
            finally:
                os.killpg(browser.pid, signal.SIGKILL)
                browser.wait()
                browser.stderr.close()

    async def with_page(self, debugger, url, act):
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{debugger}/json/list") as answer:
                tabs = await answer.json()
            socket_url = next(t for t in tabs if t["type"] == "page")["webSocketDebuggerUrl"]
            async with session.ws_connect(socket_url, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await act(page, url)
                self.assertEqual([c for c in page.complaints if "404" not in c], [])

    def test_page(self):
        async def act(page, url):
            await page.call("Page.navigate", url=url + "/")
            await self.chat(page)
            await self.live(page)

        self.drive(act)

    def test_hostile_model(self):
        async def act(page, url):
            async with HostileModel(url) as model:
                await page.call("Page.navigate", url=model.url + "/")
                await self.hostile(page, model)

        self.drive(act)

    async def hostile(self, page, model):
        await page.wait("document.getElementById('input') !== null")
        await page.ask("worst")
        await page.wait("document.querySelector('#chat').innerText.includes('Paris<img')")  # the call is shown, as text
        await page.wait("document.getElementById('send').textContent === 'Send'")
        found = "#chat img, #chat script, #chat svg, #chat a[href^=javascript], #chat a[href^=data]"
        self.assertEqual(await page.run(f"document.querySelectorAll('{found}').length"), 0)
        self.assertIn("<script>", await page.run("document.getElementById('chat').innerText"))
        await page.ask("endless")
        await page.wait("document.getElementById('send').textContent === 'Stop' &&"
                        " document.getElementById('chat').innerText.includes('more more')")
        await page.run("document.getElementById('send').click()")
        await page.wait("document.getElementById('chat').innerText.includes('stopped')")
        await asyncio.wait_for(model.stopped.wait(), 60)  # and the server knows
        await page.call("Page.reload")  # what was said is kept in the page, and as harmless
        await page.wait("document.querySelector('#chat')?.innerText.includes('Paris<img')")
        self.assertIsNone(await page.run("window.stolen"))

    async def chat(self, page):
        await page.wait("document.getElementById('model')?.textContent.includes('nibble-tiny')")
        await page.ask("What is the capital of France?")
        await page.wait("document.getElementById('chat').innerText.includes('The capital of France is Paris.')")
        self.assertFalse(await page.run("document.querySelector('#chat details').open"))  # reasoning is folded
        # Markup stays text, whoever wrote it.
        await page.ask("Repeat: <img src=x onerror='window.stolen=1'><script>window.stolen=1</scr" + "ipt>")
        await page.wait("document.getElementById('send').textContent === 'Send' &&"
                        " document.querySelectorAll('#chat .turn').length >= 4")
        self.assertEqual(await page.run("document.querySelectorAll('#chat img, #chat script').length"), 0)
        self.assertIsNone(await page.run("window.stolen"))

    async def live(self, page):
        await page.run("document.getElementById('gauges').click()")
        await page.wait("document.querySelectorAll('#live .gauge polyline').length === 7")
        text = await page.run("document.getElementById('live').innerText")
        for word in ("tokens/s", "running", "waiting", "KV cache", "GiB"):
            self.assertIn(word, text)
        await page.run("document.getElementById('gauges').click()")
        self.assertTrue(await page.run("document.getElementById('live').classList.contains('hidden')"))


if __name__ == "__main__":
    unittest.main()
