// An answer that grows, as nodes. What a Markdown text says above its last blocks no longer changes when
// more comes, so only these are parsed and drawn again: of a list or table its last item or row, and of an
// open block of code not even that: its new lines are appended.
import { LongBlock } from "./long_block.js";
import { codeBlock, languageOf, lex, nodesOf } from "./markdown.js";

const GROW = new Set(["blockquote", "list", "paragraph", "table"]);
const OPEN_FENCE = /^ {0,3}(`{3,}|~{3,})([^\n`]*)\n/;

// The index of the last block; of the one before it where the last is half a line so far: of "3" below a
// list nobody knows yet whether it will be "3." and so part of the list.
function firstOpen(blocks) {
  const last = blocks.findLastIndex((block) => block.type !== "space");
  if (last < 1 || blocks.at(-1).raw.includes("\n")) return Math.max(last, 0);
  const before = blocks.findLastIndex((block, i) => i < last && block.type !== "space");
  return before >= 0 && GROW.has(blocks[before].type) ? before : last;
}

export class Streamed {
  constructor(node) {
    this.node = node;
    this.text = "";
    this.parsed = 0;  // characters given to the parser so far; a test holds it to what is new
    this.restart();
  }

  restart() {
    this.settled = 0;    // characters of blocks that are drawn for good
    this.blocks = [];    // their sources
    this.open = [];      // nodes of the last block
    this.fence = null;   // { box, mark, from }: an open block of code, and how much of the text is in it
    this.long = null;    // the first open block, where it is a list or table of several items
    this.node.replaceChildren();
  }

  // `text` begins with what was given before. The line ends are \n.
  grow(text) {
    this.text = text;
    if (this.fence && this.growFence()) return;
    if (this.long && this.growLong()) return;
    const tail = text.slice(this.settled);
    this.parsed += tail.length;
    const blocks = lex(tail);
    const open = firstOpen(blocks);
    this.settle(blocks.slice(0, open));
    this.drawOpen(blocks.slice(open));
  }

  // No more comes. Rarely, a later line has changed what an earlier block is (a link's address given at
  // the end): then all is drawn anew.
  finish() {
    const blocks = lex(this.text);
    this.parsed += this.text.length;
    const same = this.blocks.every((raw, i) => blocks[i]?.raw === raw);
    if (!same || Object.keys(blocks.links ?? {}).length) this.restart();
    const rest = blocks.slice(this.blocks.length);
    this.fence = this.long = null;
    this.clearOpen();
    this.node.append(nodesOf(Object.assign(rest, { links: blocks.links })));
  }

  settle(blocks) {
    if (!blocks.length) return;
    this.clearOpen();
    this.node.append(nodesOf(blocks));
    for (const { raw } of blocks) {
      this.blocks.push(raw);
      this.settled += raw.length;
    }
  }

  drawOpen(blocks) {
    this.clearOpen();
    const fence = blocks.length === 1 && OPEN_FENCE.exec(blocks[0].raw);
    if (fence && !this.closing(fence[1]).test(blocks[0].raw.slice(fence[0].length))) {
      const box = codeBlock("", languageOf(fence[2].trim()));
      this.fence = { box, mark: fence[1], from: this.settled + fence[0].length };
      this.node.append(box);
      this.open = [box];
      this.growFence();
      return;
    }
    const fragment = nodesOf(blocks.slice(0, 1));
    this.long = LongBlock.of(blocks[0], fragment, this.text, this.settled);
    fragment.append(nodesOf(blocks.slice(1)));
    this.open = [...fragment.childNodes];
    this.node.append(fragment);
  }

  // False: the block is complete, or another than it was.
  growLong() {
    const { long } = this;
    this.parsed += long.head.length + this.text.length - long.at;
    const blocks = long.read(this.text);
    this.long = null;
    if (!blocks) return false;
    const end = long.draw(blocks[0]);
    for (const node of this.open.slice(long.own.length)) node.remove();
    if (firstOpen(blocks) > 0) {
      this.blocks.push(this.text.slice(this.settled, end));
      this.settled = end;
      this.open = [];
      return false;
    }
    const rest = nodesOf(blocks.slice(1));
    this.open = [...long.own, ...rest.childNodes];
    this.node.append(rest);
    this.long = long;
    return true;
  }

  closing(mark) {
    return new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`, "m");
  }

  // False: the block has been closed. Whole lines only, as half of the closing one is no code.
  growFence() {
    const { box, mark, from } = this.fence;
    const end = this.text.lastIndexOf("\n") + 1;
    if (end <= from) return true;
    const lines = this.text.slice(from, end);
    if (this.closing(mark).test(lines)) {
      this.fence = null;
      return false;
    }
    box.code.append(lines);
    this.fence.from = end;
    return true;
  }

  clearOpen() {
    for (const node of this.open) node.remove();
    this.open = [];
  }
}
