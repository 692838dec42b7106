// The list of conversations: open, find, rename, export, delete. A drawer on narrow windows.
import { asMarkdown, newConversation } from "./conversation.js";
import { $, announce, button, iconButton, lasting, make, show, touch } from "./dom.js";

const NARROW = matchMedia("(max-width: 56rem)");

export class Sidebar {
  constructor(store, chat) {
    Object.assign(this, { store, chat, items: new WeakMap() });
  }

  // Items stay the nodes that they are, and while one is pressed the list stays as it is: else a press
  // and its release would meet different nodes, and be no click; and focus would be lost.
  draw() {
    this.outdated = this.pressed;
    if (this.pressed) return;
    const wanted = $("search").value.trim().toLowerCase();
    const found = this.store.list().filter((conversation) => !wanted || says(conversation, wanted));
    const items = found.map((conversation) => this.item(conversation));
    const list = $("conversations");
    const shown = new Set(items);
    for (const old of [...list.children]) if (!shown.has(old)) old.remove();
    items.forEach((item, i) => list.children[i] === item || list.insertBefore(item, list.children[i] ?? null));
    show($("no-conversations"), !found.length);
    $("no-conversations").textContent = emptyText(wanted, this.store.lasts);
    $("title").textContent = this.chat.conversation.title || "New chat";
  }

  item(conversation) {
    let item = this.items.get(conversation);
    if (!item) {
      item = make("li");
      item.append(button("conversation", "", () => this.open(conversation)), iconButton("more", "", () => this.menu(conversation)));
      this.items.set(conversation, item);
    }
    const [open, more] = item.children;
    const current = conversation === this.chat.conversation;
    open.textContent = conversation.title || "New chat";
    open.title = `${conversation.title}\n${new Date(conversation.updated).toLocaleString()}`;
    if (current) open.setAttribute("aria-current", "true");
    else open.removeAttribute("aria-current");
    open.classList.toggle("busy", this.chat.running.has(conversation.id));
    more.title = `Rename, export or delete ${conversation.title}`;
    more.setAttribute("aria-label", more.title);
    item.classList.toggle("current", current);
    return item;
  }

  open(conversation) {
    location.hash = conversation.id;
    this.chat.open(conversation);
    if (NARROW.matches) this.toggle(false);
  }

  openNew() {
    history.pushState(null, "", location.pathname + location.search);
    this.chat.open(newConversation());
    if (NARROW.matches) this.toggle(false);
    $("input").focus();
  }

  // What the address names, or a new one.
  openFromAddress() {
    const conversation = this.store.get(location.hash.slice(1));
    if (conversation === this.chat.conversation) return;
    this.chat.open(conversation ?? newConversation());
  }

  menu(conversation) {
    const dialog = $("menu");
    $("menu-title").textContent = conversation.title || "New chat";
    $("rename").value = conversation.title;
    dialog.returnValue = "";
    dialog.onclose = () => this.act(dialog.returnValue, conversation);
    dialog.showModal();
    if (!touch()) $("rename").select();
  }

  async act(what, conversation) {
    if (what === "rename" && $("rename").value.trim()) {
      conversation.title = $("rename").value.trim();
      await this.store.save(conversation);
      announce("Renamed");
    }
    const name = (conversation.title || "chat").replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 60);
    if (what === "markdown") download(`${name}.md`, "text/markdown", asMarkdown(conversation));
    if (what === "json") download(`${name}.json`, "application/json", JSON.stringify(conversation, null, 2));
    if (what === "delete" && await sure(`Delete “${conversation.title || "New chat"}”? It is not kept anywhere else.`)) {
      this.chat.running.get(conversation.id)?.stop();
      await this.store.remove(conversation.id);
      announce("Deleted");
      if (conversation === this.chat.conversation) this.openNew();
    }
    this.draw();
  }

  async deleteAll() {
    if (!await sure("Delete all conversations? They are not kept anywhere else.")) return;
    this.chat.running.forEach((answering) => answering.stop());
    await this.store.clear();
    this.openNew();
  }

  toggle(open) {
    document.body.classList.toggle("without-sidebar", !open);
    $("open-sidebar").setAttribute("aria-expanded", open);
    show($("shade"), open && NARROW.matches);
    $("content").inert = open && NARROW.matches;
    $("sidebar").inert = !open;
    if (!NARROW.matches) lasting.setItem("sidebar", open ? "open" : "closed");
  }

  start() {
    $("new").onclick = $("new-here").onclick = () => this.openNew();
    $("search").oninput = () => this.draw();
    $("conversations").onpointerdown = () => (this.pressed = true);
    const released = () => setTimeout(() => {  // once the click is through
      this.pressed = false;
      if (this.outdated) this.draw();
    });
    addEventListener("pointerup", released);
    addEventListener("pointercancel", released);
    $("open-sidebar").onclick = () => {
      this.toggle(true);
      $("close-sidebar").focus();
    };
    const close = () => {
      this.toggle(false);
      $("open-sidebar").focus();
    };
    $("close-sidebar").onclick = $("shade").onclick = close;
    $("sidebar").onkeydown = (event) => {
      if (event.key === "Escape" && NARROW.matches) close();
    };
    const arrange = () => this.toggle(!NARROW.matches && lasting.getItem("sidebar") !== "closed");
    NARROW.onchange = arrange;
    arrange();
    addEventListener("hashchange", () => this.openFromAddress());
    addEventListener("popstate", () => this.openFromAddress());
    this.openFromAddress();
    this.draw();
  }
}

function emptyText(wanted, lasts) {
  if (wanted) return "None has these words.";
  if (!lasts) return "This browser forbids pages to keep anything: conversations last until this tab is closed.";
  return "Nothing here yet. What you write is kept in this browser only.";
}

const says = (conversation, words) =>
  conversation.title.toLowerCase().includes(words) ||
  Object.values(conversation.turns).some((turn) => turn.content.toLowerCase().includes(words));

function download(name, type, text) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function sure(question) {
  const dialog = $("sure");
  $("sure-text").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue === "yes")));
}
