"""Headless Chromium for tests and pictures of the chat page, over its debugging protocol."""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# A name that is neither localhost nor https: to a browser, what a server in a LAN is.
LAN_NAME = "nibble.lan"


class Tab:
    """Everything it complains of (script errors, blocked loads) is in `complaints`."""

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
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]

    async def run(self, script):
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def wait(self, condition):
        for _ in range(300):
            if await self.run(condition):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never came true: {condition}; the page: {await self.run('document.body.innerText')}")

    async def open(self, url):
        await self.call("Page.navigate", url=url)
        await self.ready()

    async def ready(self):
        await self.wait("document.querySelector('#samples button') !== null &&"
                        " document.getElementById('model').textContent !== ''")

    async def reload(self):
        """Once what the page is saving is saved: a transaction waits for those before it."""
        await self.run("""(async () => {
          for (const { name } of await indexedDB.databases()) await new Promise((done) => {
            const open = indexedDB.open(name);
            open.onsuccess = () => {
              const read = open.result.transaction([...open.result.objectStoreNames]);
              read.oncomplete = () => { open.result.close(); done(); };
              read.objectStore(read.objectStoreNames[0]).count();
            };
          });
        })()""")
        await self.run("document.getElementById('model').textContent = ''")
        await self.call("Page.reload")
        await self.ready()

    async def click(self, selector):
        """Presses the mouse on the middle of the element, as a user does."""
        where = f"document.querySelector({json.dumps(selector)})"
        await self.wait(f"{where} !== null && {where}.offsetParent !== null || {where}?.tagName === 'DIALOG'")
        # Where it stands once fonts have come and nothing moves any more.
        x, y = await self.run(f"""(async () => {{
          await document.fonts.ready;
          for (let was = null; ; await new Promise((go) => setTimeout(go, 30))) {{
            const e = {where};
            e?.scrollIntoView({{ block: "nearest" }});
            const r = e?.getBoundingClientRect();
            const now = r ? [r.x + r.width / 2, r.y + r.height / 2] : null;
            if (now && was && now[0] === was[0] && now[1] === was[1]) return now;
            was = now;
          }}
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def key(self, key, code):
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                            **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    async def write(self, selector, text):
        await self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        await self.call("Input.insertText", text=text)

    async def ask(self, text, wait=True):
        """Types a message and sends it; waits until the answer is complete."""
        await self.write("#input", text)
        await self.click("#send")
        if wait:
            await self.idle()

    async def idle(self):
        await self.wait("document.getElementById('send').getAttribute('aria-label') === 'Send'")

    async def text(self, selector="#chat"):
        return await self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    async def count_of(self, selector):
        return await self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    async def look(self, width, height, phone=False, dark=False, scale=1):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        await self.call("Emulation.setTouchEmulationEnabled", enabled=phone, maxTouchPoints=5 if phone else 1)
        await self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])

    async def picture(self, path):
        shot = await self.call("Page.captureScreenshot", format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))


class Browser:
    def __enter__(self):
        # Its processes may write into the profile until they are gone.
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.program = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--remote-debugging-port=0", "--remote-allow-origins=*", f"--host-resolver-rules=MAP {LAN_NAME} 127.0.0.1",
             f"--user-data-dir={self.profile.name}", "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
        for line in self.program.stderr:
            if found := re.search(r"DevTools listening on ws://([^/]+)/", line):
                self.debugger = found[1]
                return self
        raise RuntimeError("Chromium did not start")

    def __exit__(self, *_):
        os.killpg(self.program.pid, signal.SIGKILL)
        self.program.wait()
        self.program.stderr.close()
        self.profile.cleanup()

    @contextlib.asynccontextmanager
    async def tab(self):
        async with aiohttp.ClientSession() as session:
            async with session.put(f"http://{self.debugger}/json/new?about:blank") as answer:
                target = await answer.json()
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
            async with session.get(f"http://{self.debugger}/json/close/{target['id']}"):
                pass
