// The server: asking it, its streamed events, and what went wrong, in words.
import { $ } from "./dom.js";

export const setting = (id) => $(id).value.trim();

export function headers() {
  const key = setting("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// An error whose message is meant for the user.
export class Fault extends Error {}

export const UNREACHABLE = "The server cannot be reached. Is it still running, and this device in its network?";
const BROKEN_OFF = "The connection broke off. What came before is kept.";

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let said = "";
  try {
    const { error } = JSON.parse(text);
    said = error.message ?? String(error);
  } catch { /* not of nibble: a proxy's page */ }
  const wait = Number(response.headers.get("Retry-After"));
  const again = wait > 0 ? ` Try again in ${wait} s.` : "";
  if (response.status === 401) return "This server asks for an API key: enter it in Settings.";
  if (response.status === 413) return said || "This is more than the server takes in one request.";
  if (response.status === 429 || response.status === 503) return `The server is busy: ${said || "it takes no request now"}.${again}`;
  if ([502, 504].includes(response.status)) return `What stands between here and the server answered ${response.status}: the server itself may be down.`;
  return said || `The server answered ${response.status} ${response.statusText}`.trim() + ".";
}

// The events of a stream, as parsed JSON. Ends at [DONE]; a stream that just stops is a fault.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Fault(BROKEN_OFF);
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

// Calls `each` with every event. Throws a Fault, or the AbortError of `signal`.
export async function ask(request, signal, each) {
  let response;
  try {
    response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(request), signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Fault(navigator.onLine ? UNREACHABLE : "This device is offline.");
  }
  if (!response.ok) throw new Fault(await refusal(response));
  try {
    for await (const event of events(response)) {
      if (event.error) throw new Fault(event.error.message);
      each(event);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Fault) throw error;
    throw new Fault(error instanceof SyntaxError ? "The server sent what this page does not understand." : BROKEN_OFF);
  }
}

// The request for an answer to `messages`, by the settings.
export function requestFor(messages) {
  if (setting("system")) messages = [{ role: "system", content: setting("system") }, ...messages];
  const request = { messages, stream: true, stream_options: { include_usage: true }, reasoning_effort: $("effort").value };
  if (setting("temperature")) request.temperature = Number(setting("temperature"));
  if (setting("max")) request.max_tokens = Number(setting("max"));
  if (setting("tools")) request.tools = JSON.parse(setting("tools"));
  return request;
}
