"""The chat page in headless Chromium, over its debugging protocol. Skipped where there is no Chromium: apt-get install
chromium."""

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
import unittest

import aiohttp
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
        await self.run(f"document.getElementById('input').value = {json.dumps(text)};"
                       "document.getElementById('input').dispatchEvent(new Event('input'));"
                       "document.getElementById('send').click()")


@unittest.skipUnless(CHROMIUM, "there is no Chromium here")
class PageTest(unittest.TestCase):
    def test_page(self):
        with Server() as server, tempfile.TemporaryDirectory() as profile:
            browser = subprocess.Popen(
                [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
                 "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"],
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            try:
                for line in browser.stderr:
                    if found := re.search(r"DevTools listening on ws://([^/]+)/", line):
                        break
                else:
                    self.fail("Chromium did not start")
                asyncio.run(self.drive(found[1], server.url))
            finally:
                browser.kill()
                browser.wait()
                browser.stderr.close()

    async def drive(self, debugger, url):
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{debugger}/json/list") as answer:
                tabs = await answer.json()
            socket_url = next(t for t in tabs if t["type"] == "page")["webSocketDebuggerUrl"]
            async with session.ws_connect(socket_url, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url + "/")
                await self.chat(page)
                await self.live(page)
                self.assertEqual([c for c in page.complaints if "404" not in c], [])

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
