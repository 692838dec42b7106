#!/usr/bin/env python3
"""Drives the chat page of a running `nibble serve` in headless Chromium and saves a picture of it.

  build/venv/bin/python tools/chat_page_picture.py http://127.0.0.1:8000 docs/images/chat.png [--dark] [--ask "..."]...

Asks each question by typing it, waits for the answer, fails where there is none or where the page logs an error (a
violation of its Content-Security-Policy is one). Needs `chromium` and the packages of tools/requirements-test.txt.
"""

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from browser import Browser  # noqa: E402

QUESTIONS = ["What is the capital of Japan?", "What is 47 + 38?"]


async def take(options, browser):
    async with browser.tab() as tab:
        await tab.look(width=1100, height=760, dark=options.dark, scale=1.5)
        await tab.open(options.url)
        for question in options.ask:
            await tab.ask(question)
            answer = await tab.text("article:last-child .text")
            print(answer)
            assert answer, "no answer on the page"
        if options.open_thoughts:
            await tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        await asyncio.sleep(0.5)
        assert not tab.complaints, tab.complaints
        await tab.picture(options.picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("picture")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--ask", action="append")
    parser.add_argument("--open-thoughts", action="store_true", help="unfold the reasoning")
    options = parser.parse_args()
    options.ask = QUESTIONS if options.ask is None else [q for q in options.ask if q]
    with Browser() as browser:
        asyncio.run(take(options, browser))


main()
