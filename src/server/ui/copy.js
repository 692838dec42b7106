// Copying. Browsers give pages on plain http, as in a LAN, no navigator.clipboard: there the old way, by
// a selection, has to do, and where that is refused too the user is told.
import { announce, button } from "./dom.js";

export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not allowed: the old way */ }
  }
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.className = "unseen";
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch { /* refused */ }
  field.remove();
  focused?.focus({ preventScroll: true });
  return done;
}

// `text`: a function. `what` says to screen readers what is copied.
export function copyButton(text, what) {
  const node = button("quiet", "Copy", async () => {
    const done = await copy(text());
    node.textContent = done ? "Copied" : "The browser forbids it";
    announce(done ? "Copied" : "The browser does not let this page copy. Select the text and copy it yourself.");
    clearTimeout(node.timer);
    node.timer = setTimeout(() => (node.textContent = "Copy"), done ? 1500 : 5000);
  });
  node.setAttribute("aria-label", `Copy ${what}`);
  return node;
}
