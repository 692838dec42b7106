// A conversation: a tree of turns, of which one path is shown. Editing a message or asking again grows a
// branch; nothing that was said is lost.
//
//   conversation = { id, title, created, updated, turns: { id: turn }, picked: { parent: child } }
//   turn = { id, parent, role: "user", content, files: [{ name, text }] }
//        | { id, parent, role: "assistant", content, reasoning, calls: [{ id, name, arguments, result }], ... }
// The first turns have parent "". A call's result is undefined until the user has given it.

// crypto.randomUUID is for https only.
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, turns: {}, picked: {} };
}

export const children = (conversation, parent) => Object.values(conversation.turns).filter((turn) => turn.parent === parent);

export const picked = (conversation, parent) =>
  conversation.turns[conversation.picked[parent]] ?? children(conversation, parent).at(-1);

// The turns that are shown, from the first.
export function path(conversation) {
  const turns = [];
  for (let turn = picked(conversation, ""); turn; turn = picked(conversation, turn.id)) turns.push(turn);
  return turns;
}

export function add(conversation, turn) {
  const whole = { id: newId(), content: "", ...turn };
  conversation.turns[whole.id] = whole;
  conversation.picked[whole.parent] = whole.id;
  conversation.updated = Date.now();
  if (!conversation.title && turn.role === "user") conversation.title = titleOf(turn);
  return whole;
}

export function titleOf({ content, files = [] }) {
  const line = content.trim().split("\n")[0] || files[0]?.name || "New chat";
  return line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line;
}

// A fence that no line of the text ends.
export function fenceFor(text) {
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  return "`".repeat(longest + 1);
}

export function withFiles({ content, files = [] }) {
  const parts = files.map(({ name, text }) => `File ${name}:\n${fenceFor(text)}\n${text}\n${fenceFor(text)}`);
  return [...parts, content].filter(Boolean).join("\n\n");
}

export const NO_RESULT = "(no result)";

// The path up to `turn`, and it too, as the API takes it. Answers that have nothing to say are left out.
export function messages(conversation, turn) {
  const list = [];
  for (; turn; turn = conversation.turns[turn.parent]) list.unshift(...messagesOf(turn));
  return list;
}

function messagesOf(turn) {
  if (turn.role === "user") return [{ role: "user", content: withFiles(turn) }];
  const calls = turn.calls ?? [];
  if (!turn.content && !calls.length) return [];
  const message = { role: "assistant", content: turn.content };
  if (!calls.length) return [message];
  if (turn.reasoning) message.reasoning = turn.reasoning;
  message.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return [message, ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result ?? NO_RESULT }))];
}

export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "New chat"}`];
  for (const turn of path(conversation)) {
    if (turn.role === "user") {
      parts.push("## You", withFiles(turn));
      continue;
    }
    parts.push("## Answer");
    if (turn.content) parts.push(turn.content);
    for (const { name, arguments: text, result } of turn.calls ?? []) {
      parts.push(`Called \`${name}\`:`, block(text));
      if (result !== undefined) parts.push("Result:", block(result));
    }
    if (turn.error) parts.push(`(${turn.error})`);
  }
  return parts.join("\n\n") + "\n";
}

const block = (text) => `${fenceFor(text)}\n${text}\n${fenceFor(text)}`;
