// A list or a table that grows: items and rows that others follow no longer change, so only what begins
// with the last one is parsed and drawn again.
import { lex, nodesOf } from "./markdown.js";

const isList = (block) => block.type === "list";
const linesOf = (table) => table.raw.split("\n").map((line) => `${line}\n`);

// The source of each item or row; that of the last may still grow.
const partsOf = (block) => (isList(block) ? block.items.map(({ raw }) => raw) : linesOf(block).slice(2, 2 + block.rows.length));

const boxOf = (block, fragment) => (isList(block) ? fragment.firstElementChild : fragment.querySelector("tbody"));

const NODES_OF_PART = 2;  // the element and a line end

export class LongBlock {
  // Where `text` has the block's source at `from`, and it is one of several items or rows; else null.
  static of(block, fragment, text, from) {
    const many = (block?.type === "list" && block.items.length > 1) || (block?.type === "table" && block.rows.length > 1);
    return many && text.startsWith(block.raw, from) ? new LongBlock(block, fragment, from) : null;
  }

  constructor(block, fragment, from) {
    const { type, ordered, loose } = block;
    Object.assign(this, { type, ordered, loose });
    this.own = [...fragment.childNodes];
    this.box = boxOf(block, fragment);
    this.head = isList(block) ? "" : linesOf(block).slice(0, 2).join("");  // what rows need before them
    this.at = from + this.head.length;  // where the text of what may change begins
    this.keep(block);
  }

  keep(block) {
    this.at += partsOf(block).slice(0, -1).join("").length;
    this.kept = this.box.childNodes.length - NODES_OF_PART;
  }

  // The blocks of the text from the last item or row on; null where it has become another block.
  read(text) {
    const blocks = lex(this.head + text.slice(this.at));
    const [first] = blocks;
    const same = first?.type === this.type && first.ordered === this.ordered && (this.loose || !first.loose);
    return same && partsOf(first).length ? blocks : null;
  }

  // Draws the first of them; returns where in the text it ends.
  draw(block) {
    const end = this.at - this.head.length + block.raw.length;
    if (this.loose) for (const item of block.items) item.loose = true;
    const fresh = [...boxOf(block, nodesOf([block])).childNodes];
    while (this.box.childNodes.length > this.kept) this.box.lastChild.remove();
    this.box.append(...(isList(block) ? fresh.slice(1) : fresh));
    this.keep(block);
    return end;
  }
}
