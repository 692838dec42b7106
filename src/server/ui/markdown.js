// Markdown of a model as nodes. Nothing that a model writes is trusted: `marked` parses it, markup in it
// stays text, and what comes out passes DOMPurify with a short list of elements before it meets the page.
import DOMPurify from "./purify.js";
import { copyButton } from "./copy.js";
import { make } from "./dom.js";
import { inWordsOfCore, wellFormed } from "./mathml.js";

const { katex, hljs } = globalThis;
const LONGEST_COLOURED = 50_000;  // characters of code; colouring more would be felt
const LONGEST_MATH = 5_000;

const escape = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

// ---- Math: $...$, \(...\) in lines, $$...$$, \[...\], \begin{align}...\end{align} as blocks. A price is no
// formula: behind the first and before the last $ stands no space, and behind the last no digit.
const INLINE_MATH = [
  [/^\$\$(?!\$)((?:\\[^]|[^\\$])+?)\$\$/, true],
  [/^\$(?![\s$])((?:\\[^\n]|[^\\$\n])*?(?:\\[^\n]|[^\\$\s]))\$(?!\d)/, false],
  [/^\\\(((?:(?!\\\))[^])+?)\\\)/, false],
  [/^\\\[((?:(?!\\\])[^])+?)\\\]/, true],
];
const BLOCK_MATH = [  // without empty lines, as in TeX
  /^ {0,3}\$\$((?:\\[^]|\$(?!\$)|(?!\n[ \t]*\n)[^\\$])+?)\$\$[ \t]*(?:\n|$)/,
  /^ {0,3}\\\[((?:(?!\\\]|\n[ \t]*\n)[^])+?)\\\][ \t]*(?:\n|$)/,
  /^ {0,3}(\\begin\{((?:align|alignat|equation|gather)\*?)\}(?:(?!\n[ \t]*\n)[^])+?\\end\{\2\})[ \t]*(?:\n|$)/,
];

const mathCode = ({ text, display }) => `<code data-math="${display ? "block" : "inline"}">${escape(text)}</code>`;

const inlineMath = {
  name: "inlineMath",
  level: "inline",
  start: (source) => {
    const at = source.search(/\$|\\[([]/);
    return at < 0 ? undefined : at;
  },
  tokenizer(source) {
    for (const [pattern, display] of INLINE_MATH) {
      const found = pattern.exec(source);
      if (found) return { type: "inlineMath", raw: found[0], text: found[1], display };
    }
  },
  renderer: mathCode,
};

const blockMath = {
  name: "blockMath",
  level: "block",
  start: (source) => {
    const at = source.search(/^ {0,3}(?:\$\$|\\\[|\\begin\{)/m);
    return at < 0 ? undefined : at;
  },
  tokenizer(source) {
    for (const pattern of BLOCK_MATH) {
      const found = pattern.exec(source);
      if (found) return { type: "blockMath", raw: found[0], text: found[1], display: true };
    }
  },
  renderer: (token) => `<p>${mathCode(token)}</p>`,
};

// ---- The parser. Of HTML only these few words, bare, are more than text.
const HARMLESS = /^<\/?(?:br|sub|sup|kbd|b|i|u|s|mark|small)\s*\/?>$/i;

const parser = new globalThis.marked.Marked({
  gfm: true,
  breaks: true,
  // Only ~~this~~ is struck: ~5 to ~10 are estimates.
  tokenizer: { del: (source) => (/^~~(?=[^\s~])/.test(source) ? false : undefined) },
  renderer: {
    html({ text, block }) {
      if (HARMLESS.test(text.trim())) return text;
      return block ? `<p>${escape(text.trim()).replaceAll("\n", "<br>")}</p>` : escape(text);
    },
    // An image would be fetched from wherever the model says.
    image({ href, text }) {
      return `<a href="${escape(href)}">${escape(text || href)}</a>`;
    },
    // The page's own headings are h1 and h2.
    heading({ tokens, depth }) {
      const tag = `h${Math.min(depth + 2, 6)}`;
      return `<${tag} class="depth${depth}">${this.parser.parseInline(tokens)}</${tag}>`;
    },
  },
});
parser.use({ extensions: [inlineMath, blockMath] });

// The top-level blocks of a text whose lines end in \n.
export const lex = (text) => parser.lexer(text);

// ---- The gate.
const ALLOWED = {
  ALLOWED_TAGS: ["a", "b", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "i", "input", "kbd", "li",
    "mark", "ol", "p", "pre", "s", "small", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul"],
  ALLOWED_ATTR: ["align", "checked", "class", "data-math", "disabled", "href", "start", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,  // held against all attributes but the next
  ADD_URI_SAFE_ATTR: ["align", "checked", "data-math", "disabled", "start", "type"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const ALLOWED_COLOURS = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true };
const ALLOWED_MATH = {
  USE_PROFILES: { mathMl: true },
  FORBID_ATTR: ["class", "href", "id", "style", "xlink:href"],
  FORBID_CONTENTS: ["annotation"],  // the formula's source, else shown beside it
  RETURN_DOM_FRAGMENT: true,
};

function math(code) {
  const display = code.dataset.math === "block";
  if (code.textContent.length > LONGEST_MATH) return;
  try {
    const html = katex.renderToString(code.textContent, { displayMode: display, output: "mathml", trust: false, strict: "ignore", maxSize: 50 });
    const node = make("span", display ? "math block" : "math");
    node.append(DOMPurify.sanitize(wellFormed(html), ALLOWED_MATH));
    inWordsOfCore(node);
    if (display) node.tabIndex = 0;  // wide formulas are scrolled
    code.replaceWith(node);
  } catch (error) {
    code.title = error.message;  // not TeX: it stays as it was written
  }
}

function colour(code, language) {
  const text = code.textContent;
  if (!hljs.getLanguage(language) || text.length > LONGEST_COLOURED) return;
  const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(value, ALLOWED_COLOURS));
}

// A block of code under its language's name, with a button that copies it.
export function codeBlock(text, language) {
  const box = make("div", "code");
  const head = make("div", "code-head");
  const pre = make("pre");
  const code = pre.appendChild(make("code", "", text));
  const name = make("span", "language", language || "text");
  head.append(name, copyButton(() => code.textContent, language ? `${language} code` : "code"));
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", `Code, ${language || "text"}`);
  box.append(head, pre);
  box.colour = () => colour(code, language);
  box.code = code;
  return box;
}

export const languageOf = (info) => /^[\w+#.-]{1,24}/.exec(info ?? "")?.[0].toLowerCase() ?? "";

function decorate(fragment) {
  for (const code of fragment.querySelectorAll("code[data-math]")) math(code);
  for (const pre of fragment.querySelectorAll("pre")) {
    const box = codeBlock(pre.textContent.replace(/\n$/, ""), languageOf(/language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1]));
    box.colour();
    pre.replaceWith(box);
  }
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.title = link.href;
  }
  for (const input of fragment.querySelectorAll("input")) {
    input.type = "checkbox";
    input.disabled = true;
    input.closest("li")?.classList.add("task");
    input.setAttribute("aria-label", input.checked ? "done" : "to do");
  }
  for (const table of fragment.querySelectorAll("table")) {
    const scroll = make("div", "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Table");
    table.replaceWith(scroll);
    scroll.append(table);
  }
  return fragment;
}

// Blocks of lex() as nodes.
export function nodesOf(blocks) {
  return decorate(DOMPurify.sanitize(parser.parser(blocks), ALLOWED));
}
