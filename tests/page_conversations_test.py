"""Conversations on the chat page, in headless Chromium: sent, stopped, copied, kept, branched, exported, with tools and
files, and what goes wrong. Skipped where there is no Chromium: apt-get install chromium."""

import asyncio
import json
import tempfile
from pathlib import Path

import chat_page
import scripted_model
from browser import LAN_NAME
from scripted_model import RICH, says
from serving import WEATHER


class ConversationsTest(chat_page.ChatPage):
    async def test_stop(self):
        model = await self.scripted({"endless": scripted_model.endless})
        await self.tab.ask("endless", wait=False)
        await self.tab.wait("document.getElementById('chat').innerText.includes('more more')")
        await self.tab.click("#send")
        await self.tab.idle()
        self.assertIn("stopped", await self.tab.text())
        await asyncio.wait_for(model.stopped.wait(), 60)  # and the server knows
        await self.tab.ask("endless", wait=False)
        await self.tab.wait("document.querySelectorAll('#chat .text').length === 4 && document.getElementById('send').title === 'Stop'")
        await self.tab.key("Escape", 27)
        await self.tab.idle()

    # ---- Copying.

    async def pasted(self):
        await self.tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
        await self.tab.run("document.getElementById('input').value = ''")
        await self.tab.run("document.getElementById('input').focus()")
        await self.tab.call("Input.dispatchKeyEvent", type="keyDown", key="v", code="KeyV", windowsVirtualKeyCode=86, modifiers=2,
                            commands=["paste"])
        return await self.tab.run("document.getElementById('input').value")

    async def test_copy(self):
        for host, secure in (("127.0.0.1", True), (LAN_NAME, False)):
            await self.scripted(host=host)
            self.assertEqual(await self.tab.run("isSecureContext"), secure)
            await self.tab.ask(f"from {host}")
            await self.tab.click(".turn.user .foot [aria-label^=Copy]")
            await self.tab.wait("document.querySelector('.turn.user .foot').innerText.includes('Copied')")
            self.assertEqual(await self.tab.text("#status"), "Copied")
            self.assertEqual(await self.pasted(), f"from {host}")
            await self.tab.click(".code [aria-label='Copy python code']")
            await self.tab.wait("document.querySelector('.code-head').innerText.includes('Copied')")
            self.assertIn("return n if n < 2 else", await self.pasted())
        await self.tab.run("document.execCommand = () => false")
        await self.tab.click(".turn.assistant .foot [aria-label='Copy answer']")
        await self.tab.wait("document.querySelector('.turn.assistant .foot').innerText.includes('The browser forbids it')")
        self.assertIn("copy it yourself", await self.tab.text("#status"))

    # ---- Conversations.

    async def titles(self):
        return await self.tab.run("[...document.querySelectorAll('.conversation')].map((e) => e.textContent)")

    async def test_conversations(self):
        tab = self.tab
        await self.scripted()
        await tab.ask("tea")
        await tab.click("#new")
        await tab.ask("coffee and cake")
        self.assertEqual(await self.titles(), ["coffee and cake", "tea"])
        await tab.click("#conversations li:nth-child(2) .conversation")
        await tab.wait("document.querySelector('.turn.user .text').innerText === 'tea'")
        self.assertEqual(await tab.text("#title"), "tea")
        await tab.reload()  # the address names the conversation
        await tab.wait("document.querySelector('.turn.user .text')?.innerText === 'tea'")
        await tab.run("history.back()")
        await tab.wait("document.querySelector('.turn.user .text')?.innerText === 'coffee and cake'")
        await tab.click("#conversations li:nth-child(2) .icon")
        await tab.write("#rename", "green <b>tea</b>")
        await tab.key("Enter", 13)
        await tab.wait("document.querySelector('#conversations').innerText.includes('green <b>tea</b>')")
        await tab.write("#search", "PLAN for cak")
        await tab.wait("document.querySelectorAll('.conversation').length === 0")
        await tab.write("#search", "Coffee")
        await tab.wait("document.querySelectorAll('.conversation').length === 1")
        await tab.click("#conversations .icon")
        await tab.click("#menu button[value=delete]")
        await tab.click("#sure button[value=yes]")
        await tab.wait("document.querySelectorAll('.turn').length === 0")  # and the focus has moved
        await tab.write("#search", "")
        await tab.key("Backspace", 8)
        await tab.wait("document.querySelectorAll('.conversation').length === 1 && document.querySelectorAll('.turn').length === 0")
        await tab.reload()
        await tab.wait("document.querySelectorAll('.conversation').length === 1")
        self.assertEqual(await self.titles(), ["green <b>tea</b>"])

    async def test_the_list_is_drawn_while_one_is_pressed(self):
        tab = self.tab
        await self.scripted()
        for text in ("tea", "coffee", "cake"):
            await tab.click("#new")
            await tab.ask(text)
        redraw = "document.getElementById('search').dispatchEvent(new Event('input'))"
        tea = "document.querySelector('.conversation[title^=tea]')"
        x, y = await tab.run(f"(() => {{ const r = {tea}.getBoundingClientRect(); return [r.x + 20, r.y + r.height / 2]; }})()")
        await tab.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        await tab.run("document.getElementById('search').value = 'cak'")  # and the one that is pressed would go
        await tab.run(redraw)
        await tab.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
        await tab.wait("document.querySelector('.turn.user .text').innerText === 'tea'")
        await tab.wait("document.querySelectorAll('.conversation').length === 1")  # now the list is what was asked for
        await tab.run("document.getElementById('search').value = ''")
        await tab.run(redraw)
        await tab.run(f"{tea}.focus()")
        await tab.run(redraw)
        self.assertTrue(await tab.run(f"document.activeElement === {tea}"))

    async def test_branches(self):
        tab = self.tab
        model = await self.scripted({"two": says("the answer to two"), "deux": says("réponse")})
        await tab.ask("one")
        await tab.ask("two")
        await tab.click("article:nth-child(3) [aria-label^=Edit]")
        await tab.write("article.user textarea", "deux")
        await tab.click("article.user .edit .send")
        await tab.wait("document.getElementById('chat').innerText.includes('réponse')")
        await tab.idle()
        self.assertEqual([m["content"] for m in model.requests[-1]["messages"]], ["one", RICH, "deux"])
        self.assertIn("2/2", await tab.text("article:nth-child(3)"))
        await tab.click("article:nth-child(4) [aria-label='Answer again']")
        await tab.wait("document.querySelector('article:nth-child(4)').innerText.includes('2/2')")
        await tab.idle()
        await tab.click("article:nth-child(3) [aria-label='Previous version']")
        await tab.wait("document.getElementById('chat').innerText.includes('the answer to two')")
        await tab.reload()  # the branch that was picked stays picked, the others stay
        await tab.wait("document.getElementById('chat').innerText.includes('the answer to two')")
        await tab.click("article:nth-child(3) [aria-label='Next version']")
        await tab.wait("document.querySelector('article:nth-child(4)').innerText.includes('2/2')")

    async def test_kept_from_the_moment_of_sending(self):
        tab = self.tab
        await self.scripted({"silent": scripted_model.silent, "endless": scripted_model.endless})
        await tab.ask("silent", wait=False)
        await tab.wait("document.getElementById('send').title === 'Stop'")
        await tab.reload()
        await tab.wait("document.getElementById('chat').innerText.includes('silent')")
        self.assertIn("closed before the answer was complete", await tab.text())
        await tab.click("#new")
        await tab.ask("endless", wait=False)
        await tab.wait("document.getElementById('chat').innerText.length > 1000")  # some seconds of it
        await tab.reload()
        await tab.wait("document.getElementById('chat').innerText.includes('more more')")

    async def begin_slow_answer(self):
        """A model whose answer to "slow" has begun in the tab, and what lets it go on."""
        go_on = asyncio.Event()

        async def waits(_request, send, _response):
            await send(content="begun ")
            await go_on.wait()
            await send(content="and ended")

        model = await self.scripted({"slow": waits})
        await self.tab.ask("slow", wait=False)
        await self.tab.wait("document.getElementById('chat').innerText.includes('begun')")
        return model, go_on

    async def test_an_answer_seen_from_another_tab(self):
        tab = self.tab
        model, go_on = await self.begin_slow_answer()
        other = await self.enterAsyncContext(self.browser.tab())
        await other.open(f"http://127.0.0.1:{model.port}/{await tab.run('location.hash')}")
        await other.wait("document.getElementById('chat').innerText.includes('slow')")
        self.assertIn("is still open in another tab", await other.text())
        go_on.set()
        await tab.idle()
        await tab.wait("document.getElementById('chat').innerText.includes('begun and ended')")
        await other.reload()
        await other.wait("document.getElementById('chat').innerText.includes('begun and ended')")
        self.assertNotIn("another tab", await other.text())

    async def test_answers_go_on_while_another_conversation_is_read(self):
        tab = self.tab
        _, go_on = await self.begin_slow_answer()
        await tab.click("#new")
        await tab.ask("other")
        go_on.set()
        await tab.wait("document.querySelector('.conversation.busy') === null")
        await asyncio.sleep(0.3)  # the one that was answered last has moved up
        await tab.click(".conversation[title^=slow]")
        await tab.wait("document.getElementById('chat').innerText.includes('begun and ended')")

    async def test_export(self):
        tab = self.tab
        await self.scripted({"weather?": scripted_model.calls})
        with tempfile.TemporaryDirectory() as folder:
            await tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            await tab.ask("tea & ``` cake")
            for kind, name in (("markdown", "tea-cake.md"), ("json", "tea-cake.json")):
                await tab.click("#conversations .icon")
                await tab.click(f"#menu button[value={kind}]")
                for _ in range(100):
                    if (Path(folder) / name).exists():
                        break
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.3)
            text = (Path(folder) / "tea-cake.md").read_text()
            self.assertTrue(text.startswith("# tea & ``` cake\n\n## You\n\ntea & ``` cake\n\n## Answer\n\n# The plan"), text)
            kept = json.loads((Path(folder) / "tea-cake.json").read_text())
            self.assertEqual([t["role"] for t in kept["turns"].values()], ["user", "assistant"])

    async def test_no_storage(self):
        """A browser that forbids storage: the page works, and says that nothing lasts."""
        await self.tab.call("Page.addScriptToEvaluateOnNewDocument", source="""
            for (const name of ['localStorage', 'sessionStorage'])
              Object.defineProperty(window, name, { get() { throw new DOMException('no', 'SecurityError'); } });
            indexedDB.open = () => { throw new DOMException('no', 'SecurityError'); };""")
        await self.scripted()
        self.assertIn("forbids pages to keep anything", await self.tab.text("#no-conversations"))
        await self.tab.ask("tea")
        self.assertIn("The plan", await self.tab.text())
        self.assertEqual(await self.titles(), ["tea"])

    # ---- Tools.

    async def test_tool_calls_stay_in_the_history(self):
        tab = self.tab
        model = await self.scripted({"weather?": scripted_model.calls})
        await tab.click("#settings")
        await tab.write("#tools", "{")
        await tab.click("#dialog button.send")
        self.assertIn("no JSON", await tab.text("#tools-fault"))
        await tab.write("#tools", json.dumps([WEATHER]))
        await tab.click("#dialog button.send")
        await tab.ask("weather?")
        self.assertEqual(model.requests[-1]["tools"], [WEATHER])
        self.assertIn("Calls get_weather", await tab.text())
        await tab.write(".call textarea", "sunny")
        await tab.click(".after > .send")
        await tab.wait("document.getElementById('chat').innerText.includes('It is sunny in Paris.')")
        await tab.idle()
        history = [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": "", "reasoning": "I need the weather.", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
        self.assertEqual(model.requests[-1]["messages"], history)
        await tab.reload()
        await tab.wait("document.getElementById('chat').innerText.includes('sunny')")
        await tab.ask("thanks")
        self.assertEqual(model.requests[-1]["messages"][:3], history)

    # ---- What goes wrong.

    async def test_errors_in_words(self):
        tab = self.tab
        model = await self.scripted({
            "drop": scripted_model.drops, "proxy": scripted_model.proxy_page,
            "busy": scripted_model.refuses(429, "too many requests wait", **{"Retry-After": "7"}),
            "key": scripted_model.refuses(401, "no key"), "long": scripted_model.refuses(400, "the prompt has 9000 tokens")})
        for question, words in (("drop", "half an ans"), ("drop", "The connection broke off"), ("proxy", "answered 502"),
                                ("busy", "Try again in 7 s"), ("key", "API key: enter it in Settings"), ("long", "9000 tokens")):
            await tab.ask(question)
            self.assertIn(words, await tab.text("article:last-child"))
        self.assertIn("9000 tokens", await tab.text("#status"))
        tab.complaints = [c for c in tab.complaints if "status of" not in c and "ERR_" not in c]
        await model.site.stop()
        await model.runner.cleanup()
        await tab.ask("gone")
        self.assertIn("cannot be reached", await tab.text("article:last-child"))
        self.assertIn("Try again", await tab.text("article:last-child"))
        self.assertNotIn("fetch", await tab.text("article:last-child"))
        tab.complaints = [c for c in tab.complaints if "ERR_CONNECTION_REFUSED" not in c]

    # ---- Files.

    async def test_attached_files(self):
        tab = self.tab
        model = await self.scripted()
        with tempfile.TemporaryDirectory() as folder:
            notes, picture = Path(folder) / "notes.md", Path(folder) / "p.png"
            notes.write_text("one\n```\ntwo\n```\n")
            picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\xff")
            document = await tab.call("DOM.getDocument")
            node = await tab.call("DOM.querySelector", nodeId=document["root"]["nodeId"], selector="#file")
            await tab.call("DOM.setFileInputFiles", nodeId=node["nodeId"], files=[str(notes), str(picture)])
            await tab.wait("document.getElementById('banner').innerText.includes('p.png is no text file')")
        self.assertEqual(await tab.run("document.querySelectorAll('#files .file').length"), 1)
        await tab.ask("Sum up")
        self.assertEqual(model.requests[-1]["messages"][0]["content"],
                         "File notes.md:\n````\none\n```\ntwo\n```\n\n````\n\nSum up")
        self.assertIn("notes.md", await tab.text("article.user"))
        self.assertEqual(await tab.run("document.querySelectorAll('#files .file').length"), 0)
        await tab.reload()
        await tab.wait("document.querySelector('article.user')?.innerText.includes('notes.md')")


if __name__ == "__main__":
    chat_page.main()
