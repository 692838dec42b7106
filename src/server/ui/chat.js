// The conversation that is shown: its turns, and what the user does with them.
import { Answering } from "./answering.js";
import { add, children, newConversation, NO_RESULT, path } from "./conversation.js";
import { $, announce, show, touch } from "./dom.js";
import { files, setFiles } from "./files.js";
import { AnswerView, UserView } from "./turns.js";

const NEAR_END = 120;         // pixels: who reads the end is taken along
const PAINT_SHARE = 4;        // painting may take a quarter of the time
const SPOKEN_CHARACTERS = 500;  // of a complete answer, to screen readers

export class Chat {
  // changed(): titles or the list have changed.
  constructor(store, changed) {
    Object.assign(this, { store, changed });
    this.conversation = newConversation();
    this.views = new Map();
    this.running = new Map();  // by conversation
    $("main").onscroll = () => this.showDown();
    $("down").onclick = () => this.follow(true);
    addEventListener("pagehide", () => this.running.forEach((answering) => store.save(answering.conversation)));
  }

  open(conversation) {
    this.conversation = conversation;
    this.views.clear();
    this.draw();
    this.changed();
  }

  answering() {
    return this.running.get(this.conversation.id);
  }

  stop() {
    this.answering()?.stop();
  }

  // Shows the picked path. What is shown already stays as it is.
  draw() {
    const turns = path(this.conversation);
    show($("welcome"), !turns.length);
    const shown = turns.map((turn) => this.view(turn));
    this.views = new Map(shown.map((view) => [view.turn.id, view]));
    const nodes = shown.map((view) => view.node);
    const same = nodes.findIndex((node, i) => $("chat").children[i] !== node);
    const kept = same < 0 ? nodes.length : same;
    while ($("chat").children.length > kept) $("chat").lastChild.remove();
    $("chat").append(...nodes.slice(kept));
    this.follow(true);
    this.controls();
  }

  view(turn) {
    const siblings = children(this.conversation, turn.parent);
    const at = siblings.indexOf(turn);
    const known = this.views.get(turn.id);
    if (known?.turn === turn && known.at === at && known.of === siblings.length) return known;
    const branch = { at, of: siblings.length, go: (step) => this.pick(siblings[at + step]) };
    let view;
    if (turn.role === "user") {
      view = new UserView(turn, { branch, edit: (text) => this.send(text, turn.files ?? [], turn.parent) });
    } else {
      const parent = this.conversation.turns[turn.parent];
      view = new AnswerView(turn, { branch, again: () => this.answer(parent), results: () => this.giveResults(turn) });
      if (this.answering()?.turn === turn) view.paint();
      else {
        if (turn.live) this.brokenOff(turn);
        view.draw();
      }
    }
    return Object.assign(view, { at, of: siblings.length });
  }

  brokenOff(turn) {
    delete turn.live;
    turn.error = "The page that asked was closed before the answer was complete, or is still open in another tab.";
  }

  pick(turn) {
    if (!turn) return;
    this.conversation.picked[turn.parent] = turn.id;
    this.save();
    const top = $("main").scrollTop;
    this.draw();
    $("main").scrollTop = top;
  }

  // Of the conversation that is shown where no other is named. Told, once, where a browser does not keep it.
  async save(conversation = this.conversation) {
    const did = this.store.lasts;
    if (!(await this.store.save(conversation)) && did) this.changed();
  }

  // A message, as the child of a turn (default: the last one shown).
  send(text, attached, parent = path(this.conversation).at(-1)?.id ?? "") {
    if (this.answering() || !(text || attached.length)) return false;
    const turn = add(this.conversation, { parent, role: "user", content: text, files: attached });
    history.replaceState(null, "", `#${this.conversation.id}`);
    this.answer(turn);
    return true;
  }

  // What stands in the box below, if anything.
  sendInput() {
    if (!this.send($("input").value.trim(), files())) return;
    $("input").value = "";
    setFiles([]);
    this.grow();
  }

  giveResults(turn) {
    if (this.answering()) return;
    for (const call of turn.calls) {
      call.result ??= call.draft?.trim() || NO_RESULT;
      delete call.draft;
    }
    this.views.get(turn.id).draw();
    this.answer(turn);
  }

  // Asks for an answer to `parent`; beside the answers that it has.
  async answer(parent) {
    if (this.answering()) return;
    const { conversation } = this;
    const turn = add(conversation, { parent: parent.id, role: "assistant", reasoning: "", calls: [], live: true });
    const paint = this.painter(turn);
    const answering = new Answering(conversation, turn, { changed: paint, save: () => this.save(conversation) });
    this.running.set(conversation.id, answering);
    this.save();
    this.draw();
    this.changed();
    if (touch()) $("input").blur();  // the keyboard goes, the answer has its room
    else $("input").focus();
    announce("Waiting for the answer");
    await answering.run();
    this.running.delete(conversation.id);
    conversation.updated = Date.now();
    this.save(conversation);
    if (this.conversation === conversation) {
      this.views.get(turn.id)?.draw();
      this.follow(false);
      this.controls();
      announce(turn.error ?? `Answer: ${turn.content.slice(0, SPOKEN_CHARACTERS)}`);
    }
    this.changed();
  }

  // A function that has `turn` painted soon: in the next frame, or later where painting is dear.
  painter(turn) {
    let queued = false;
    let notBefore = 0;
    const paint = () => {
      queued = false;
      const start = performance.now();
      if (this.running.get(this.conversation.id)?.turn !== turn) return;
      this.views.get(turn.id)?.paint();
      this.follow(false);
      notBefore = performance.now() + (PAINT_SHARE - 1) * (performance.now() - start);
    };
    return () => {
      if (queued) return;
      queued = true;
      setTimeout(() => requestAnimationFrame(paint), Math.max(0, notBefore - performance.now()));
    };
  }

  nearEnd() {
    const main = $("main");
    return main.scrollHeight - main.scrollTop - main.clientHeight < NEAR_END;
  }

  // Takes who reads the end along with it.
  follow(always) {
    if (always) this.atEnd = true;
    if (this.atEnd) $("main").scrollTo({ top: $("main").scrollHeight, behavior: "instant" });
    this.showDown();
  }

  showDown() {
    this.atEnd = this.nearEnd();
    show($("down"), !this.atEnd);
  }

  controls() {
    const busy = Boolean(this.answering());
    const send = $("send");
    send.firstElementChild.firstElementChild.setAttribute("href", busy ? "#icon-stop" : "#icon-send");
    send.setAttribute("aria-label", busy ? "Stop" : "Send");
    send.title = busy ? "Stop" : "Send";
    send.disabled = !busy && !$("input").value.trim() && !files().length;
  }

  grow() {
    const input = $("input");
    input.style.height = "auto";
    input.style.height = `${input.scrollHeight}px`;
    this.controls();
  }

  start() {
    $("form").onsubmit = (event) => {
      event.preventDefault();
      if (this.answering()) this.stop();
      else this.sendInput();
    };
    $("input").oninput = () => this.grow();
    $("input").onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch()) return;
      event.preventDefault();
      this.sendInput();
    };
    this.draw();
  }
}

