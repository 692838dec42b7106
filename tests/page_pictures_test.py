"""Pictures of every state of the chat page, light and dark, on a desk and on a phone, in build/pictures. What can be
checked without eyes is: nothing reaches beyond the window, nothing complains, words stand out from their ground.
Skipped where there is no Chromium: apt-get install chromium."""

import asyncio
import sys
import unittest
from pathlib import Path

import scripted_model
from browser import CHROMIUM
from chat_page import ServedPage
from scripted_model import ScriptedModel, says

FOLDER = Path(__file__).resolve().parent.parent / "build" / "pictures"
LOOKS = {f"{device}-{'dark' if dark else 'light'}": dict(size, dark=dark)
         for device, size in {"desk": dict(width=1200, height=800), "phone": dict(width=390, height=844, phone=True, scale=2)}.items()
         for dark in (False, True)}
SCRIPTS = {
    "Will it rain?": scripted_model.calls, "Think about tea": scripted_model.thinking, "Wait": scripted_model.silent,
    "Count for ever": scripted_model.endless, "Break off": scripted_model.drops,
    "What is the capital of Japan?": says("The capital of Japan is **Tokyo**.", reasoning="A fact."),
    "Code": says("```python\n" + "".join(f"print({i})  # a line that is longer than any phone is wide, as lines of code are\n" for i in range(12)) + "```\n"),
}

# The contrast of every piece of text with what lies under it, by WCAG 2's formula; large text needs 3, other 4.5.
POOR_CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest('.unseen, :disabled, math')) continue;
    const style = getComputedStyle(e), [a, b] = [light(rgba(style.color)), light(ground(e))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) poor.push(`${walker.currentNode.data.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return poor;
})()"""


class PicturesTest(ServedPage):
    @classmethod
    def setUpClass(cls):
        FOLDER.mkdir(parents=True, exist_ok=True)
        super().setUpClass()

    async def shoot(self, state):
        tab, phone = self.tab, self.look.startswith("phone")
        await asyncio.sleep(0.2)
        await tab.picture(FOLDER / f"{self.look}-{state}.png")
        self.assertLessEqual(await tab.run("document.documentElement.scrollWidth"), 390 if phone else 1200, state)
        self.assertEqual(await tab.run(POOR_CONTRAST), [], f"{self.look} {state}")

    async def sidebar(self):
        if self.look.startswith("phone"):
            await self.tab.click("#open-sidebar")

    async def states(self):
        tab = self.tab
        await self.shoot("1-welcome")
        await tab.ask("What is the capital of Japan?")
        await self.shoot("2-short-answer")
        await tab.ask("Plan my tea")
        await tab.run("document.getElementById('main').scrollTop = 200")
        await self.shoot("3-markdown-top")
        await tab.click("#down")
        await self.shoot("4-markdown-end")
        await tab.click("article:last-child [aria-label='Answer again']")
        await tab.wait("document.querySelector('article:last-child').innerText.includes('2/2')")
        await tab.ask("Code")
        await self.shoot("5-code")
        await tab.ask("Will it rain?")
        await self.shoot("6-call")
        await tab.write(".call textarea", '{"sky": "grey", "celsius": 14}')
        await tab.click(".after > .send")
        await tab.wait("document.getElementById('chat').innerText.includes('It is sunny')")
        await self.shoot("7-result")
        for state, question in (("8-thinking", "Think about tea"), ("9-waiting", "Wait"), ("10-streaming", "Count for ever")):
            await self.new()
            await tab.ask(question, wait=False)
            await asyncio.sleep(0.7)
            await self.shoot(state)
            await tab.click("#send")
            await tab.idle()
        await self.shoot("11-stopped")
        await self.new()
        await tab.ask("Break off")
        await self.shoot("12-broken-off")
        tab.complaints = [c for c in tab.complaints if "ERR_INCOMPLETE" not in c]
        await tab.click("article.user [aria-label^=Edit]")
        await self.shoot("13-edit")
        await self.dialogs()

    async def new(self):
        await self.tab.click("#new-here" if self.look.startswith("phone") else "#new")

    async def dialogs(self):
        tab = self.tab
        await self.new()
        await tab.run("""(() => { const data = new DataTransfer(); data.items.add(new File(['x'.repeat(3000)], 'notes-of-the-meeting-in-november.md'));
            document.ondrop(Object.assign(new Event('drop'), { dataTransfer: data })); })()""")
        await tab.write("#input", "Sum these up,\nin two lines.")
        await self.shoot("14-attached")
        await self.sidebar()
        await self.shoot("15-conversations")
        await tab.click("#conversations .icon")
        await self.shoot("16-menu")
        await tab.click("#menu button[value=delete]")
        await self.shoot("17-delete")
        await tab.key("Escape", 27)
        await tab.click("#settings")
        await self.shoot("18-settings")
        await tab.key("Escape", 27)
        await tab.click("#gauges")
        if self.look.startswith("phone"):
            await tab.click("#close-sidebar")
        await tab.wait("document.querySelectorAll('#live .gauge').length === 7")
        await self.shoot("19-live")
        self.assertEqual(await tab.run("new Set([...document.querySelectorAll('#live b')].map((b) => b.offsetHeight)).size"), 1)

    async def test_desk_light(self):
        await self.take("desk-light")

    async def test_desk_dark(self):
        await self.take("desk-dark")

    async def test_phone_light(self):
        await self.take("phone-light")

    async def test_phone_dark(self):
        await self.take("phone-dark")

    async def take(self, look):
        self.look = look
        async with ScriptedModel(self.server.url, SCRIPTS) as model, self.browser.tab() as self.tab:
            await self.tab.look(**LOOKS[look])
            await self.tab.open(model.url + "/")
            await self.states()
            self.assertEqual(self.tab.complaints, [])


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: there is no Chromium here (apt-get install chromium)")
        sys.exit(77)
    unittest.main()
