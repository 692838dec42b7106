"""What tests of the chat page stand on: a server of the shipped model, headless Chromium, and a tab before either a
model that says what a test wants or the shipped one."""

import sys
import unittest

from browser import CHROMIUM, Browser
from scripted_model import ScriptedModel
from serving import Server

DESK = dict(width=1200, height=800)


class ServedPage(unittest.IsolatedAsyncioTestCase):
    """A server and a browser for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)
        cls.browser = Browser()
        cls.browser.__enter__()
        cls.addClassCleanup(cls.browser.__exit__, None, None, None)


class ChatPage(ServedPage):
    async def asyncSetUp(self):
        self.tab = await self.enterAsyncContext(self.browser.tab())
        await self.tab.look(**DESK)

    async def asyncTearDown(self):
        self.assertEqual(self.tab.complaints, [])

    async def scripted(self, scripts=(), host="127.0.0.1"):
        model = await self.enterAsyncContext(ScriptedModel(self.server.url, scripts))
        await self.tab.open(f"http://{host}:{model.port}/")
        return model


def main():
    if not CHROMIUM:
        print("skipped: there is no Chromium here (apt-get install chromium)")
        sys.exit(77)
    unittest.main()
