// The turns of a conversation on the page. Each view has a `node`; what its buttons do is given to it.
import { copyButton } from "./copy.js";
import { button, iconButton, make, show } from "./dom.js";
import { sizeOf } from "./files.js";
import { codeBlock, lex, nodesOf } from "./markdown.js";
import { Streamed } from "./streamed.js";

function article(kind, heading) {
  const node = make("article", `turn ${kind}`);
  const name = make("h2", "unseen", heading);
  node.append(name);
  return node;
}

// ‹ 2/3 › where a turn has siblings. `branch`: { at, of, go(step) }.
function branches({ at, of, go }) {
  const node = make("span", "branches");
  if (of < 2) return node;
  const back = iconButton("back", "Previous version", () => go(-1));
  const on = iconButton("on", "Next version", () => go(1));
  back.disabled = at === 0;
  on.disabled = at === of - 1;
  const count = make("span", "soft", `${at + 1}/${of}`);
  count.setAttribute("aria-label", `Version ${at + 1} of ${of}`);
  node.append(back, count, on);
  return node;
}

export class UserView {
  // acts: { branch, edit(text) }
  constructor(turn, acts) {
    Object.assign(this, { turn, acts });
    this.node = article("user", "You");
    this.draw();
  }

  draw() {
    const { turn, acts } = this;
    const parts = [];
    if (turn.files?.length) {
      const list = make("ul", "files");
      list.setAttribute("aria-label", "Attached files");
      for (const file of turn.files) {
        const item = list.appendChild(make("li", "file"));
        item.append(make("span", "file-name", file.name), make("span", "soft", sizeOf(file.text)));
      }
      parts.push(list);
    }
    if (turn.content) parts.push(make("div", "text", turn.content));
    const foot = make("div", "foot");
    const edit = button("quiet", "Edit", () => this.edit());
    edit.setAttribute("aria-label", "Edit this message and send it again");
    foot.append(branches(acts.branch), copyButton(() => turn.content, "message"), edit);
    this.show(...parts, foot);
  }

  show(...nodes) {
    this.node.replaceChildren(this.node.firstChild, ...nodes);
  }

  edit() {
    const form = make("form", "box edit");
    const field = make("textarea");
    field.value = this.turn.content;
    field.rows = Math.min(12, this.turn.content.split("\n").length + 1);
    field.setAttribute("aria-label", "Edit message");
    const row = make("div", "row");
    const sendButton = make("button", "send", "Send");
    row.append(make("span", "space"), button("quiet", "Cancel", () => this.draw()), sendButton);
    form.append(field, row);
    form.onsubmit = (event) => {
      event.preventDefault();
      if (field.value.trim() || this.turn.files?.length) this.acts.edit(field.value.trim());
    };
    field.onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.draw();
      this.node.querySelector(".foot button").focus();
    };
    this.show(form);
    field.focus();
  }
}

export class AnswerView {
  // acts: { branch, again(), results() }
  constructor(turn, acts) {
    Object.assign(this, { turn, acts });
    this.node = article("assistant", "Answer");
    this.details = make("details", "hidden");
    this.summary = make("summary", "", "Thinking");
    this.thought = make("div", "thought");
    this.details.append(this.summary, this.thought);
    this.text = make("div", "text");
    this.streamed = new Streamed(this.text);
    this.after = make("div", "after");
    this.node.append(this.details, this.text, this.after);
    this.thoughtLength = 0;
  }

  // While tokens come. Its cost is that of what is new.
  paint() {
    const { reasoning, content, calls } = this.turn;
    if (reasoning.length > this.thoughtLength) {
      this.thought.append(reasoning.slice(this.thoughtLength));
      this.thoughtLength = reasoning.length;
    }
    const thinking = !content && !calls.length;
    show(this.details, reasoning);
    this.details.classList.toggle("working", thinking);
    if (this.thinking !== thinking) this.details.open = thinking;
    this.thinking = thinking;
    if (!thinking) this.nameThoughts();
    this.text.classList.toggle("waiting", thinking && !reasoning);
    this.node.setAttribute("aria-busy", "true");
    if (content.length > this.streamed.text.length) this.streamed.grow(content);
    if (calls.length) this.after.replaceChildren(...calls.map((call) => this.callBox(call, true)));
  }

  nameThoughts() {
    this.summary.textContent = this.turn.thoughtSeconds >= 0.1 ? `Thought for ${this.turn.thoughtSeconds} s` : "Thoughts";
  }

  // The whole answer, at rest.
  draw() {
    const { turn } = this;
    const { reasoning, content, calls } = turn;
    if (this.streamed.text) {
      this.streamed.grow(content);
      this.streamed.finish();
    } else {
      this.text.replaceChildren(nodesOf(lex(content)));
    }
    this.thought.textContent = reasoning;
    show(this.details, reasoning);
    this.details.classList.remove("working");
    this.details.open = Boolean(reasoning) && !content && !calls.length && !turn.error;
    this.nameThoughts();
    this.text.classList.remove("waiting");
    this.node.removeAttribute("aria-busy");
    const after = calls.map((call) => this.callBox(call, false));
    if (calls.some((call) => call.result === undefined)) after.push(button("send", "Send results", () => this.acts.results()));
    if (turn.error) after.push(this.fault());
    else if (!content && !calls.length && !reasoning) after.push(make("p", "soft", turn.stopped ? "Stopped before the first word." : "The answer is empty."));
    this.after.replaceChildren(...after, this.foot());
  }

  fault() {
    const node = make("div", "trouble");
    node.append(make("p", "fault", this.turn.error), button("quiet framed", "Try again", () => this.acts.again()));
    return node;
  }

  foot() {
    const { turn, acts } = this;
    const foot = make("div", "foot");
    foot.append(branches(acts.branch));
    if (turn.content || turn.reasoning) foot.append(copyButton(() => turn.content || turn.reasoning, "answer"));
    if (!turn.error) {
      const again = button("quiet", "Again", () => acts.again());
      again.setAttribute("aria-label", "Answer again");
      foot.append(again);
    }
    if (turn.facts) foot.append(make("span", "facts", turn.facts));
    return foot;
  }

  // A call of a tool: what it was given, and its result, which the user types.
  callBox(call, live) {
    const box = make("section", "call");
    box.setAttribute("aria-label", `Call of ${call.name}`);
    const head = make("p", "call-head");
    head.append("Calls ", make("strong", "", call.name));
    const given = codeBlock(pretty(call.arguments), "json");
    box.append(head, given);
    if (live) return box;
    given.colour();
    if (call.result !== undefined) {
      box.append(make("p", "call-head", "Result"), codeBlock(pretty(call.result), ""));
      return box;
    }
    const label = make("label", "", "Its result, which you give");
    const field = label.appendChild(make("textarea"));
    field.rows = 2;
    field.value = call.draft ?? "";
    field.oninput = () => (call.draft = field.value);
    box.append(label);
    return box;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
