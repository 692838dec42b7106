// Puts the page together, and finds out what the server is.
import { headers, UNREACHABLE } from "./api.js";
import { Chat } from "./chat.js";
import { $, announce, button, show } from "./dom.js";
import { startFiles } from "./files.js";
import { startLive } from "./live.js";
import { startSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";

const SAMPLES = ["What is 47 + 38?", "What is the capital of Japan?", "Sort these words: pear, fig, apple", "Who are you?"];
const COMPLAINT_MS = 8000;

function banner(text) {
  $("banner").textContent = text;
  show($("banner"), text);
}

// Something that the user should know for a moment.
function complain(text) {
  banner(text);
  $("main").scrollTo({ top: 0 });
  setTimeout(() => $("banner").textContent === text && banner(""), COMPLAINT_MS);
}

// Is it ready, what does it serve, does it want a key.
async function connect() {
  for (;;) {
    const health = await fetch("health").catch(() => null);
    if (health?.ok) break;
    banner(health?.status === 503 ? "The model is being loaded …" : UNREACHABLE);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  banner("");
  const models = await fetch("v1/models", { headers: headers() }).catch(() => null);
  if (!models?.ok) {
    banner(models?.status === 401 ? "This server asks for an API key: enter it in Settings." : UNREACHABLE);
    return;
  }
  const model = (await models.json()).data[0];
  $("model").textContent = model.id;
  $("model").title = `context: ${model.max_model_len} tokens`;
  document.title = `${model.id} · nibble`;
}

function keys(chat, sidebar) {
  document.onkeydown = (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) chat.stop();
    if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) {
      event.preventDefault();
      sidebar.openNew();
    }
    if (event.key === "/" && event.target === document.body) {
      event.preventDefault();
      $("input").focus();
    }
  };
}

async function start() {
  const store = new Store();
  let sidebar;
  const chat = new Chat(store, () => sidebar?.draw());
  sidebar = new Sidebar(store, chat);
  startSettings(connect, () => sidebar.deleteAll());
  startLive();
  startFiles((text) => { complain(text); announce(text); }, () => chat.controls());
  keys(chat, sidebar);
  connect();
  await store.open();
  for (const text of SAMPLES) $("samples").append(button("", text, () => chat.send(text, [])));
  chat.start();
  sidebar.start();
}

start();
