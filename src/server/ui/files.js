// Text files that go with the next message.
import { $, announce, iconButton, make, show } from "./dom.js";

const LARGEST = 2 << 20;  // bytes; far more than a context has room for

let attached = [];
let changed = () => {};

export const files = () => attached;

export function setFiles(list) {
  attached = [...list];
  draw();
}

export const sizeOf = (text) => (text.length < 1000 ? `${text.length} characters` : `${Math.round(text.length / 1000)} k characters`);

function draw() {
  $("files").replaceChildren(...attached.map((file) => {
    const item = make("li", "file");
    item.append(make("span", "file-name", file.name), make("span", "soft", sizeOf(file.text)), iconButton("close", `Remove ${file.name}`, () => setFiles(attached.filter((f) => f !== file))));
    return item;
  }));
  show($("files"), attached.length);
  changed();
}

async function read(file) {
  if (file.size > LARGEST) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MiB; up to 2 can be attached.`);
  const wrong = new Error(`${file.name} is no text file.`);
  const bytes = await file.arrayBuffer();
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw wrong;
  }
  if (text.includes("\0")) throw wrong;
  return { name: file.name, text };
}

export async function attach(list, complain) {
  for (const file of list) {
    try {
      const { name, text } = await read(file);
      setFiles([...attached.filter((f) => f.name !== name), { name, text }]);
      announce(`Attached ${name}`);
    } catch (error) {
      complain(error.message);
    }
  }
}

// Files come by the button, dropped anywhere, or pasted. `onChange` hears of every change.
export function startFiles(complain, onChange) {
  changed = onChange;
  $("attach").onclick = () => $("file").click();
  $("file").onchange = async () => {
    await attach($("file").files, complain);
    $("file").value = "";
    $("input").focus();
  };
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = (event) => {
    event.preventDefault();
    attach(event.dataTransfer.files, complain);
  };
  $("input").onpaste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach(event.clipboardData.files, complain);
  };
}
