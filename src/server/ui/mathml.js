// Browsers draw MathML Core, which has no words for letters of other alphabets, for the columns of
// equations and for boxes: here what KaTeX says of these is put as characters and classes.

// Of each alphabet the code points of A, a, 0, Α and α, where it has them.
const ALPHABETS = {
  "bold": [0x1d400, 0x1d41a, 0x1d7ce, 0x1d6a8, 0x1d6c2],
  "bold-italic": [0x1d468, 0x1d482, 0x1d7ce, 0x1d71c, 0x1d736],
  "script": [0x1d49c, 0x1d4b6],
  "fraktur": [0x1d504, 0x1d51e],
  "double-struck": [0x1d538, 0x1d552, 0x1d7d8],
  "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2],
  "monospace": [0x1d670, 0x1d68a, 0x1d7f6],
};
const RANGES = ["AZ", "az", "09", "ΑΩ", "αω"];
// Letters that Unicode had before it had the rest of their alphabets, each behind its plain one.
const ELSEWHERE = { "script": "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ", "fraktur": "CℭHℌIℑRℜZℨ", "double-struck": "CℂHℍNℕPℙQℚRℝZℤ" };

function letter(plain, alphabet) {
  const known = ELSEWHERE[alphabet]?.indexOf(plain) ?? -1;
  if (known >= 0) return ELSEWHERE[alphabet][known + 1];
  const range = RANGES.findIndex(([first, last]) => plain >= first && plain <= last);
  const start = ALPHABETS[alphabet][range];
  return start ? String.fromCodePoint(start + plain.charCodeAt(0) - RANGES[range].charCodeAt(0)) : plain;
}

// A table's attribute for its i-th column or gap: the last of a list holds for all that follow.
function listed(table, name, i) {
  const all = (table.getAttribute(name) ?? "").split(" ");
  return all[Math.min(i, all.length - 1)];
}

function arrange(table) {
  [...table.children].forEach((row, down) => {
    row.classList.toggle("line-below", down + 1 < table.children.length && listed(table, "rowlines", down) === "solid");
    [...row.children].forEach((cell, i) => {
      const isLast = i + 1 === row.children.length;
      const align = listed(table, "columnalign", i);
      if (align === "left" || align === "right") cell.classList.add(align);
      cell.classList.toggle("close-before", i > 0 && listed(table, "columnspacing", i - 1) === "0em");
      cell.classList.toggle("close-behind", !isLast && listed(table, "columnspacing", i) === "0em");
      cell.classList.toggle("line-behind", !isLast && listed(table, "columnlines", i) === "solid");
    });
  });
}

// KaTeX's text, before it is parsed: without the empty cells beside numbered equations, which would take
// room, and with rows where it has elements in a leaf, as for \boldsymbol{ab}: these would be lost.
export const wellFormed = (html) => html
  .replace(/<mtd class ="(?:mtr-glue|mml-eqn-num)"><\/mtd>/g, "")
  .replace(/<m[ino](?: [^>]*)?>(?=<)/g, "<mrow>")
  .replace(/(?<=>)<\/m[ino]>/g, "</mrow>");

export function inWordsOfCore(node) {
  for (const leaf of node.querySelectorAll("mi, mn, mo")) {
    const alphabet = leaf.getAttribute("mathvariant");
    if (ALPHABETS[alphabet]) leaf.textContent = Array.from(leaf.textContent, (c) => letter(c, alphabet)).join("");
  }
  for (const mo of node.querySelectorAll("mover > mo")) {
    if (mo.textContent === "\u20d7") mo.textContent = "→";  // a vector's arrow; the combining one hangs to the left
  }
  node.querySelectorAll("mtable").forEach(arrange);
}
