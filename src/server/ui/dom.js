// Small words for the document.

export const $ = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// One of the symbols of index.html.
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function button(className, label, act) {
  const node = make("button", className, label);
  node.type = "button";
  node.onclick = act;
  return node;
}

export function iconButton(name, label, act) {
  const node = button("icon", undefined, act);
  node.setAttribute("aria-label", label);
  node.title = label;
  node.append(icon(name));
  return node;
}

export const show = (node, shown) => node.classList.toggle("hidden", !shown);

// Tells screen readers, once.
export function announce(text) {
  $("status").textContent = text;
}

// True for fingers: no keyboard to send with.
export const touch = () => matchMedia("(pointer: coarse)").matches;

// What a browser without storage (private windows, locked-down ones) has instead of it.
function storage(kind) {
  try {
    window[kind].getItem("");
    return window[kind];
  } catch {
    const kept = new Map();
    return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  }
}
export const lasting = storage("localStorage");
export const ofThisTab = storage("sessionStorage");
