// Settings, kept in this browser; the API key until the tab is closed. Light or dark.
import { $, lasting, ofThisTab, show } from "./dom.js";

const FIELDS = ["effort", "system", "temperature", "max", "tools", "key"];
const storeOf = (id) => (id === "key" ? ofThisTab : lasting);

function toolsFault() {
  const text = $("tools").value.trim();
  if (!text) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools have to be a JSON list: [ ... ]";
  } catch (error) {
    return `Tools are no JSON: ${error.message}`;
  }
}

const isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function nameTheme() {
  $("theme").textContent = isDark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
}

function startTheme() {
  $("theme").onclick = () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    lasting.setItem("theme", theme);
    nameTheme();
  };
  matchMedia("(prefers-color-scheme: dark)").onchange = nameTheme;
  nameTheme();
}

// done(): the dialog was closed. deleteAll(): asked for.
export function startSettings(done, deleteAll) {
  for (const id of FIELDS) {
    $(id).value = storeOf(id).getItem(id) ?? (id === "effort" ? "medium" : "");
    $(id).onchange = () => storeOf(id).setItem(id, $(id).value);
  }
  if (toolsFault()) $("tools").value = "";
  const dialog = $("dialog");
  $("settings").onclick = () => dialog.showModal();
  dialog.querySelector("form").onsubmit = (event) => {
    const fault = toolsFault();
    $("tools-fault").textContent = fault;
    show($("tools-fault"), fault);
    if (fault) event.preventDefault();
  };
  dialog.onclose = () => {
    if (toolsFault()) $("tools").value = "";  // left by Esc
    done();
  };
  $("delete-all").onclick = deleteAll;
  startTheme();
}
