// An answer under way: from the request to the last event, written into its turn. It goes on when the
// user looks at another conversation.
import { ask, Fault, requestFor } from "./api.js";
import { messages } from "./conversation.js";

const SAVE_MS = 2000;  // at most this much of an answer is lost when the page is closed

export class Answering {
  // Calls changed() after every event, save() now and then.
  constructor(conversation, turn, { changed, save }) {
    Object.assign(this, { conversation, turn, changed, save });
    this.abort = new AbortController();
    this.start = performance.now();
    this.first = 0;  // when the first token came
    this.saved = this.start;
    this.usage = null;
    this.finish = "";
  }

  stop() {
    this.abort.abort();
  }

  async run() {
    const { turn } = this;
    try {
      const request = requestFor(messages(this.conversation, this.conversation.turns[turn.parent]));
      await ask(request, this.abort.signal, (event) => this.take(event));
      if (this.finish === "length") turn.cut = true;
    } catch (error) {
      if (error.name === "AbortError") turn.stopped = true;
      else if (error instanceof Fault) turn.error = error.message;
      else turn.error = `This page failed: ${error.message}`;
    }
    turn.facts = this.facts();
    delete turn.live;
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (choice) {
      if (choice.delta) this.add(choice.delta);
      this.finish = choice.finish_reason || this.finish;
    }
    this.changed();
    if (performance.now() - this.saved > SAVE_MS) {
      this.saved = performance.now();
      this.save();
    }
  }

  add({ reasoning, content, tool_calls: calls }) {
    const { turn } = this;
    if (reasoning || content || calls) this.first ||= performance.now();
    if ((content || calls) && turn.reasoning && !turn.thoughtSeconds) {
      turn.thoughtSeconds = ((performance.now() - this.start) / 1000).toFixed(1);
    }
    if (reasoning) turn.reasoning += reasoning;
    if (content) turn.content += content.replaceAll("\r", "");
    for (const call of calls ?? []) {
      const known = (turn.calls[call.index] ??= { id: "", name: "", arguments: "" });
      known.id ||= call.id ?? "";
      known.name += call.function?.name ?? "";
      known.arguments += call.function?.arguments ?? "";
    }
  }

  facts() {
    const parts = [];
    if (this.turn.stopped) parts.push("stopped");
    if (this.turn.cut) parts.push("cut off at the limit");
    const tokens = this.usage?.completion_tokens;
    const seconds = (performance.now() - this.first) / 1000;
    if (tokens !== undefined) parts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
    // An answer that came in one piece says nothing about its speed.
    if (this.first && tokens > 1 && seconds > 0.05) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    if (this.first) parts.push(`first after ${Math.round(this.first - this.start)} ms`);
    return parts.join(" · ");
  }
}
