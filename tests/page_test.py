"""What the chat page draws, in headless Chromium: the shipped model's answers, and those of one that says what a test
wants. Skipped where there is no Chromium: apt-get install chromium."""

import json
import random
import urllib.request

import chat_page
import scripted_model
from scripted_model import RICH, says

SEEDS = (1, 2, 3)
STEAL = "window.stolen=1"
# What a model may say to make the page run something, load something, or look like something else.
HOSTILE = [
    f"<img src=x onerror='{STEAL}'><script>{STEAL}</script>",
    f"[a](javascript:{STEAL}) [b](data:text/html,x) [c](vbscript:x) [d]( java\tscript:{STEAL}) [e](&#106;avascript:{STEAL})",
    "![c](http://127.0.0.1:1/c.png) ![d](data:image/svg+xml,x)",
    f"**<svg onload='{STEAL}'>** <math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=x onerror={STEAL}&gt;'>",
    f"<noscript><p title='</noscript><img src=x onerror={STEAL}>'>",
    f"<form><math><mtext></form><form><mglyph><style></math><img src onerror={STEAL}>",
    f"\n```html\n</code></pre><img src=x onerror='{STEAL}'>\n```\n",
    f"\n```\"><img/src=x/onerror={STEAL}>\nx\n```\n",
    f"\n~~~x' onclick='{STEAL}\nx\n~~~\n",
    f"$\\href{{javascript:{STEAL}}}{{x}}$ $\\url{{javascript:{STEAL}}}$ $\\includegraphics{{http://127.0.0.1:1/x}}$",
    f"$\\htmlStyle{{position:fixed;inset:0}}{{x}}$ $\\htmlData{{a=b}}{{x}}$ $\\htmlId{{send}}{{x}}$ $\\text{{</math><img src=x onerror={STEAL}>}}$",
    f"$$\\unicode{{<img src=x onerror={STEAL}>}}$$ \\(<img src=x onerror={STEAL}>\\)",
    "$\\def\\a{\\a\\a}\\a$ $\\rule{9999999em}{9999999em}$",
    f"<a href='javascript:{STEAL}' id=send class=unseen style='position:fixed'>x</a><base href='http://127.0.0.1:1/'>",
    "<iframe srcdoc='<script>parent.stolen=1</script>'></iframe><object data=x></object><embed src=x><link rel=stylesheet href=x>",
    f"<details ontoggle={STEAL} open>x</details> <br onclick={STEAL}> <sub style='position:fixed'>x</sub>",
    "<style>*{display:none}</style> <input autofocus onfocus=window.stolen=1> <button formaction=javascript:1>x</button>",
    f"| a |\n|---|\n| <td onmouseover={STEAL}>x |\n\n- [x] <input type=image src=x onerror={STEAL}>\n",
    f"[x]: javascript:{STEAL} \"</a><img src=x onerror={STEAL}>\"\n\n[x] <javascript:{STEAL}> <x:y>\n",
]
SHOWN = {"A", "B", "BLOCKQUOTE", "BR", "CODE", "DEL", "EM", "H2", "H3", "H4", "H5", "H6", "HR", "I", "INPUT", "KBD", "LI", "MARK", "OL", "P",
         "PRE", "S", "SMALL", "STRONG", "SUB", "SUP", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "U", "UL",
         # the page's own
         "ARTICLE", "BUTTON", "DETAILS", "DIV", "LABEL", "SECTION", "SPAN", "SUMMARY", "TEXTAREA", "svg", "use",
         # MathML without links and actions
         "math", "menclose", "merror", "mfrac", "mi", "mn", "mo", "mover", "mpadded", "mphantom", "mroot", "mrow", "mspace",
         "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"}

# Texts whose pieces come in every way that a stream may cut them.
STREAMED = [
    RICH,
    "a\n\n- one\n- two\n\n  more of two\n\n1. x\n   ```js\n   let a;\n   ```\n2. y\n\nend",
    "para\n===\n\n| a | b |\n|---|---|\n| 1 | 2 |\nnot a row?\n\n> q\n> > qq\n\n    indented\n\nlast",
    "see [the docs][d] and [d]\n\nmore\n\n[d]: https://example.org/ \"t\"\n",
    "````md\n```\ninner\n```\n````\n~~~\nx\n~~~~\n\n```c\nint main() {}\n",
    "a\n```x`y``` b\n\n$$\na\n\nb\n$$\n\\[ x^2 \\]\n\n***\n**bold\n\nnot bold**",
    "<div>\n<p>html</p>\n</div>\n\ntext <!-- c --> end\n\n- [ ] a\n- [x] b\n\n\n\n\n# h\n## h2\ntext",
    "- a\n- b\n- c\n\n- loose\n- all\n\nend\n- x\n- y\n+ other\n+ list\n1. a\n2. b\n3) c\n4) d\n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n| `x\\|y` | *5* |\n| 1 |\nnot a row?\n- item\n\n| b |\n|---|\n| 3 |\n| 4 |\n\n    code\n",
    "- a\nlazy\n- b\n- [x] c **d\n- e** f\n-\n- $x$\n  | x |\n  |---|\n  | 1 |\n- y\n# head\n - a\n  - b\n   - c\n\n   of c\n",
    "1) a\n2) b\n\n\n3) c\n\ntext\n* x\n+ y\n- z\n\n\ttab\n\nemoji 👩‍👩‍👧 é \u202e rtl",
]

# What their last line says changes what is above, or it is not said yet that it is the last.
ENDS_MATTER = [STREAMED[3], STREAMED[4]]

# What TeX says, and what has to be read of it.
FORMULAS = {
    r"\boldsymbol{ab+c} \bm{xy}": "𝒂𝒃+𝒄𝒙𝒚", r"\boldsymbol{\alpha\Sigma}": "𝜶𝚺", r"a \bmod b": "amodb", r"\overset{def}{=}": "=def",
    r"\stackrel{!}{=}": "=!", r"\underset{x}{\max} f": "maxxf", r"\boxed{\bm{ab}}": "𝒂𝒃", r"\mathbb{RCk1}": "ℝℂ𝕜𝟙",
    r"\mathcal{LFx}": "ℒℱ𝓍", r"\mathfrak{gC}": "𝔤ℭ", r"\mathbf{A12}": "𝐀𝟏𝟐", r"\mathsf{T}": "𝖳", r"\mathtt{ab}": "𝚊𝚋", r"\mathrm{d}": "d",
    r"\text{if $n$ is even}": "ifniseven", r"\begin{gather} a \\ b \end{gather}": "ab", r"\vec{v}": "v→", r"\left.x\right|_0^1": "x∣01",
    r"\xrightarrow[a]{b} \sqrt[3]{x} \binom{n}{k}": "→abx3(nk)",
}
PHONE = dict(width=390, height=844, phone=True)


class PageTest(chat_page.ChatPage):
    # ---- The server's part.

    def test_files(self):
        for path in ("/", "/ui/app.js", "/ui/katex.js", "/ui/licenses.txt"):
            with urllib.request.urlopen(self.server.url + path) as answer:
                policy, etag = answer.headers["Content-Security-Policy"], answer.headers["ETag"]
                self.assertEqual(answer.headers["Content-Encoding"], None if path == "/" else "gzip")
            for word in ("default-src 'none'", "script-src 'self';", "style-src 'self';", "require-trusted-types-for 'script'"):
                self.assertIn(word, policy)
            self.assertNotIn("unsafe", policy)
            with self.assertRaises(urllib.error.HTTPError) as unchanged:
                urllib.request.urlopen(urllib.request.Request(self.server.url + path, headers={"If-None-Match": etag}))
            self.assertEqual(unchanged.exception.code, 304)
            unchanged.exception.close()
        with self.assertRaises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(self.server.url + "/ui/../server.cc")
        self.assertEqual(missing.exception.code, 404)
        missing.exception.close()

    async def test_shipped_model(self):
        tab = self.tab
        await tab.open(self.server.url + "/")
        await tab.ask("What is the capital of France?")
        self.assertIn("The capital of France is Paris.", await tab.text())
        self.assertFalse(await tab.run("document.querySelector('#chat details').open"))  # reasoning is folded
        await tab.ask("Repeat: <img src=x onerror='window.stolen=1'><script>window.stolen=1</script>")
        self.assertEqual(await tab.count_of("#chat img, #chat script"), 0)
        self.assertIn("<script>", await tab.text())
        await tab.click("#gauges")
        await tab.wait("document.querySelectorAll('#live .gauge polyline').length === 7")
        for word in ("tokens/s", "running", "waiting", "KV cache", "GiB"):
            self.assertIn(word, await tab.text("#live"))
        await tab.click("#gauges")
        self.assertTrue(await tab.run("document.getElementById('live').classList.contains('hidden')"))

    # ---- What a model may say.

    async def assert_harmless(self):
        tab = self.tab
        found = await tab.run("""[...new Set([...document.querySelectorAll('#chat *')].flatMap((e) => [e.tagName,
            ...[...e.attributes].filter((a) => a.name.startsWith('on') || a.name === 'style' || a.name === 'id' || a.name === 'src' ||
                (a.name.includes('href') && !/^(https?:|mailto:|#icon-)/.test(a.value))).map((a) => `${e.tagName} ${a.name}=${a.value}`)]))]""")
        self.assertEqual(set(found) - SHOWN, set())
        self.assertIsNone(await tab.run("window.stolen"))

    async def test_hostile_model(self):
        scripts = {f"worst {i}": says(text[:17], text[17:], reasoning=text) for i, text in enumerate(HOSTILE)}
        model = await self.scripted(scripts)
        for question in scripts:
            await self.tab.ask(question)
            self.assertEqual(await self.tab.count_of("#chat .fault"), 0, await self.tab.text())
        await self.assert_harmless()
        self.assertIn("<script>", await self.tab.text())
        await self.tab.reload()  # what is kept is drawn as harmless
        await self.tab.wait(f"document.querySelectorAll('#chat .turn').length === {2 * len(HOSTILE)}")
        await self.assert_harmless()
        model.name = HOSTILE[0]
        await self.tab.reload()
        self.assertIn("<script>", await self.tab.text("#model"))

    async def test_hostile_calls(self):
        worst = HOSTILE[0]

        async def script(_request, send, _response):
            await send(tool_calls=[{"index": 0, "id": worst, "function": {"name": worst, "arguments": worst}}])

        await self.scripted({"call": script})
        await self.tab.ask("call")
        await self.assert_harmless()
        self.assertIn("<script>", await self.tab.text())

    async def test_nothing_becomes_markup_behind_the_sanitizer(self):
        await self.scripted()
        for script in ("document.body.innerHTML = '<b>x</b>'", "document.body.insertAdjacentHTML('beforeend', 'x')", "eval('1')",
                       "document.createElement('script').text = '1'"):
            result = await self.tab.call("Runtime.evaluate", expression=script, allowUnsafeEvalBlockedByCSP=False)
            self.assertRegex(json.dumps(result), "TypeError|EvalError", script)
        self.tab.complaints.clear()

    async def test_markdown(self):
        await self.scripted()
        await self.tab.ask("everything")
        for selector, count in {
                "h3.depth1": 1, "strong": 1, "em": 1, "del": 1, "ol > li > ul > li > ul > li": 1, "li.task input:disabled": 2,
                "li.task input:checked": 1, "td[align=right]": 2, "th": 3, "blockquote": 1, "hr": 1, ".code": 2, "sub": 1,
                ".code .hljs-keyword": 4, ".math math": 3, "msqrt": 2, ".math.block math[display=block]": 1, "mfrac": 2,
                "a[href='https://example.org/a?b=1&c=2'][target=_blank][rel~=noopener]": 1}.items():
            self.assertEqual(await self.tab.count_of(f"#chat .text {selector}"), count, selector)
        self.assertEqual(await self.tab.text(".language"), "python")
        self.assertIn("costs $5 or $10", await self.tab.text())
        self.assertIn("H~2~O", await self.tab.text())  # one ~ strikes nothing
        self.assertNotIn("\\frac", await self.tab.text())
        await self.tab.wait("[...document.fonts].some((font) => font.family.includes('STIX') && font.status === 'loaded')")

    async def formula(self, text):
        """Draws it below the others; what it says, without what is not seen."""
        return await self.tab.run(f"""(async () => {{
            const {{ lex, nodesOf }} = await import('./ui/markdown.js');
            const box = document.createElement('div');
            box.className = 'text';
            box.append(nodesOf(lex({json.dumps(text)} + '\\n')));
            document.getElementById('chat').append(box);
            return box.textContent.replace(/[\\s\u2061\u200b]/g, '');
        }})()""")

    async def test_formulas_lose_nothing(self):
        await self.scripted()
        for tex, said in FORMULAS.items():
            self.assertEqual(await self.formula(f"$${tex}$$"), said, tex)
        self.assertEqual(await self.formula("\\begin{align*}\nx &= 1 \\\\\ny &= 2\n\\end{align*}"), "x=1y=2")
        self.assertEqual(await self.tab.count_of("#chat .math.block math"), len(FORMULAS) + 1)

    async def test_formulas_are_in_columns(self):
        await self.scripted()
        edges = """[...document.querySelectorAll('#chat .text:last-child mtr')].map((row) =>
            [...row.children].map((cell) => { const { left, right } = cell.firstElementChild.getBoundingClientRect(); return [left, right]; }))"""
        await self.formula("$$\\begin{aligned} f(x) &= (a+b)^2 \\\\ &= c \\end{aligned}$$")
        (name, first), (_, second) = await self.tab.run(edges)
        self.assertAlmostEqual(first[0], second[0], delta=1)
        self.assertAlmostEqual(name[1], first[0], delta=1)
        await self.formula("$$x = \\begin{cases} 1 & \\text{if } y \\\\ -100 & \\text{otherwise} \\end{cases}$$")
        one, other = await self.tab.run(edges)
        for a, b in zip(one, other, strict=True):
            self.assertAlmostEqual(a[0], b[0], delta=1)
        await self.formula("$\\boxed{42}$")
        self.assertEqual(await self.tab.run("getComputedStyle(document.querySelector('menclose')).borderTopWidth"), "1px")

    # ---- Streams.

    async def test_a_streamed_answer_is_drawn_as_a_whole_one(self):
        await self.scripted()
        for seed in SEEDS:
            rng = random.Random(seed)
            for text in STREAMED:
                cuts = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.choice((3, 20, len(text))))))
                differ = await self.tab.run(f"""(async () => {{
                    const {{ Streamed }} = await import('./ui/streamed.js');
                    const {{ lex, nodesOf }} = await import('./ui/markdown.js');
                    const text = {json.dumps(text)}, whole = document.createElement('div'), node = document.createElement('div');
                    whole.append(nodesOf(lex(text)));
                    const streamed = new Streamed(node);
                    for (const cut of {cuts}.concat(text.length)) streamed.grow(text.slice(0, cut));
                    const same = () => node.innerHTML === whole.innerHTML ? '' : node.innerHTML + '\\n---\\n' + whole.innerHTML;
                    const before = {json.dumps(text not in ENDS_MATTER)} ? same() : '';
                    streamed.finish();
                    return before || same();
                }})()""")
                self.assertEqual(differ, "", f"seed {seed}: {text}")

    async def test_a_stream_costs_by_what_is_new(self):
        await self.scripted()
        # Each piece of 7 characters is parsed with the rest of its block and, while that is half a line, the
        # block before (36 characters each), code only when its block opens and closes; finish() parses all
        # once more. Of lists and tables the last two items or rows are parsed, those below their head.
        paragraphs = "".join(f"Paragraph {i} with *some* words.\n\n" for i in range(3000))
        code = "```c\n" + "int x = 1;\n" * 5000 + "```\n"
        items = "".join(f"- item {i} with *some* words.\n" for i in range(3000))
        rows = "| a | b |\n|---|---|\n" + "".join(f"| cell {i} | value *{i}* |\n" for i in range(3000))
        for text, most in ((paragraphs, 12), (code, 4), (items, 12), (rows, 16)):
            parsed = await self.tab.run(f"""(async () => {{
                const {{ Streamed }} = await import('./ui/streamed.js');
                const text = {json.dumps(text)}, streamed = new Streamed(document.createElement('div'));
                for (let end = 7; end < text.length + 7; end += 7) streamed.grow(text.slice(0, end));
                streamed.finish();
                return streamed.parsed / text.length;
            }})()""")
            self.assertLess(parsed, most)

    # ---- Phones, screen readers.

    async def small_targets(self):
        return await self.tab.run("""[...document.querySelectorAll('button, select, input, textarea, summary')].filter((e) =>
            e.offsetParent && !e.closest('.unseen') && !e.closest('li.task')).map((e) => [e, e.getBoundingClientRect()])
            .filter(([e, r]) => r.width < 44 || (r.height < 44 && e.tagName !== 'TEXTAREA')).map(([e, r]) => `${e.outerHTML.slice(0, 80)} ${r.width}x${r.height}`)""")

    async def assert_fits(self):
        self.assertLessEqual(await self.tab.run("document.documentElement.scrollWidth"), await self.tab.run("innerWidth"))
        wide = await self.tab.run("""[...document.querySelectorAll('body *')].filter((e) => e.offsetParent && !e.closest('.unseen, .scroll, pre, .math, svg') &&
            e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))""")
        self.assertEqual(wide, [])

    async def test_phone(self):
        tab = self.tab
        await tab.look(**PHONE)
        await self.scripted({"weather?": scripted_model.calls})
        await self.assert_fits()
        self.assertEqual(await tab.run("getComputedStyle(document.querySelector('.hint')).display"), "none")
        await tab.write("#input", "a line")
        await tab.key("Enter", 13)  # breaks the line: a phone has no Shift+Enter
        self.assertEqual(await tab.count_of(".turn"), 0)
        await tab.ask("everything")
        await tab.ask("weather?")
        await tab.click("article:nth-child(2) [aria-label='Answer again']")
        await tab.idle()
        await self.assert_fits()
        self.assertEqual(await self.small_targets(), [])
        await tab.click("#open-sidebar")
        await tab.wait("document.getElementById('content').inert")
        self.assertEqual(await self.small_targets(), [])
        await tab.click("#settings")
        self.assertEqual(await self.small_targets(), [])
        await tab.click("#dialog button.send:not(.quiet)")
        await tab.click("#conversations .icon")
        self.assertEqual(await self.small_targets(), [])
        await tab.key("Escape", 27)
        await tab.click("#conversations .conversation")
        await tab.wait("!document.getElementById('content').inert")  # the drawer has closed

    async def test_names_for_screen_readers(self):
        tab = self.tab
        await self.scripted({"weather?": scripted_model.calls})
        await tab.ask("everything")
        await tab.ask("weather?")
        await tab.call("Accessibility.enable")
        nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
        shown = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
        unnamed = [role for role, name in shown if not name.strip() and role in
                   ("button", "textbox", "searchbox", "combobox", "checkbox", "link", "navigation", "region", "dialog", "heading", "spinbutton")]
        self.assertEqual(unnamed, [])
        headings = [name for role, name in shown if role == "heading"]
        self.assertEqual(headings, ["everything", "You", "Answer", "The plan", "Code", "You", "Answer"])
        landmarks = [role for role, _ in shown if role in ("navigation", "banner", "main", "contentinfo")]
        self.assertEqual(landmarks, ["navigation", "banner", "main", "contentinfo"])
        self.assertIn("Answer:", await tab.text("#status"))


if __name__ == "__main__":
    chat_page.main()
