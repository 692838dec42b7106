#!/usr/bin/env python3
"""Drives the chat page of a running `nibble serve` in headless Chromium and saves a picture of it.

  tools/chat_page_picture.py http://127.0.0.1:8000 docs/images/chat.png [--dark] [--ask "..."]...

Asks each question by typing it, waits for the answer, fails where there is none or where the page
logs an error (a violation of its Content-Security-Policy is one). Needs `chromium` and the packages
of tools/requirements-test.txt.
"""

import argparse
import asyncio
import base64
import json
import shutil
import tempfile

import aiohttp

QUESTIONS = ["What is the capital of Japan?", "What is 47 + 38?"]


class Page:
    """One tab, spoken to by the Chrome DevTools Protocol."""

    def __init__(self, socket):
        self.socket = socket
        self.count = 0
        self.errors = []

    async def call(self, method, **params):
        self.count += 1
        await self.socket.send_json({"id": self.count, "method": method, "params": params})
        while True:
            message = json.loads((await self.socket.receive()).data)
            if message.get("id") == self.count:
                if "error" in message:
                    raise RuntimeError(message["error"])
                return message["result"]
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"]["text"])
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])

    async def evaluate(self, expression):
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    async def wait_for(self, expression, seconds=60):
        for _ in range(int(seconds * 10)):
            if await self.evaluate(expression):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"still not true after {seconds} s: {expression}; page errors: {self.errors}")

    async def ask(self, question):
        await self.evaluate("document.getElementById('input').focus()")
        await self.call("Input.insertText", text=question)
        await self.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13)
        await self.wait_for("document.getElementById('send').textContent === 'Stop' || turns.length > 0")
        await self.wait_for("document.getElementById('send').textContent === 'Send'")


async def drive(options, debug_url):
    async with aiohttp.ClientSession() as http:
        for _ in range(100):
            try:
                async with http.put(f"{debug_url}/json/new?about:blank") as answer:
                    target = await answer.json()
                break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
        async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            await page.call("Emulation.setDeviceMetricsOverride", width=1100, height=760, deviceScaleFactor=1.5, mobile=False)
            scheme = "dark" if options.dark else "light"
            await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            await page.call("Page.navigate", url=options.url)
            await page.wait_for("document.readyState === 'complete' && document.getElementById('model').textContent !== ''")
            for question in options.ask:
                await page.ask(question)
                print(await page.evaluate("JSON.stringify(turns.at(-1))"))
                assert await page.evaluate("turns.at(-1).content.length > 0"), "no answer on the page"
            if options.open_thoughts:
                await page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            await asyncio.sleep(0.5)
            assert not page.errors, page.errors
            shot = await page.call("Page.captureScreenshot", format="png")
            with open(options.picture, "wb") as f:
                f.write(base64.b64decode(shot["data"]))


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("picture")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--ask", action="append")
    parser.add_argument("--open-thoughts", action="store_true", help="unfold the reasoning")
    parser.add_argument("--debug-port", type=int, default=9321)
    options = parser.parse_args()
    options.ask = QUESTIONS if options.ask is None else [q for q in options.ask if q]
    profile = tempfile.mkdtemp()
    chromium = await asyncio.create_subprocess_exec(
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        f"--user-data-dir={profile}", f"--remote-debugging-port={options.debug_port}", "about:blank",
        stderr=asyncio.subprocess.DEVNULL)
    try:
        await drive(options, f"http://127.0.0.1:{options.debug_port}")
    finally:
        chromium.terminate()
        await chromium.wait()
        shutil.rmtree(profile, ignore_errors=True)


asyncio.run(main())
