// What the server is doing, once a second while it is shown, with the last two minutes as plots.
import { headers } from "./api.js";
import { $, make, show } from "./dom.js";

// Each gauge: its name, its value from two answers of /load and the seconds between them, and how it
// is shown.
const GAUGES = [
  ["generation", (now, was, s) => (now.generation_tokens - was.generation_tokens) / s, (v) => rate(v)],
  ["prompts", (now, was, s) => (now.prompt_tokens - was.prompt_tokens) / s, (v) => rate(v)],
  ["running", (now) => now.requests_running, (v) => requests(v)],
  ["waiting", (now) => now.requests_waiting, (v) => requests(v)],
  ["KV cache", (now) => 100 * now.kv_cache_usage, (v) => `${v.toFixed(1)} %`],
  ["prefix cache", (now) => 100 * now.prefix_cache_hits / Math.max(1, now.prefix_cache_queries), (v) => `${v.toFixed(1)} % hits`],
  ["memory", (now) => now.resident_memory_bytes / 2 ** 30, (v) => `${v.toFixed(2)} GiB`],
];
const rate = (v) => `${v.toFixed(v < 100 ? 1 : 0)} tokens/s`;
const requests = (v) => (v === 1 ? "1 request" : `${v} requests`);
const SECONDS_SHOWN = 120;
const past = GAUGES.map(() => []);
let last = null;
let timer = 0;

function plot(values) {
  const most = Math.max(...values, 1e-9);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SECONDS_SHOWN} 34`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const first = SECONDS_SHOWN - values.length;
  line.setAttribute("points", values.map((v, i) => `${first + i},${(33 - 31 * v / most).toFixed(1)}`).join(" "));
  svg.append(line);
  return svg;
}

async function paint() {
  const answer = await fetch("load", { headers: headers() }).catch(() => null);
  if (!answer?.ok) {
    last = null;
    $("live").replaceChildren(make("p", "soft", answer?.status === 401 ? "These figures need the API key: see Settings." : "The server does not answer."));
    return;
  }
  const now = { ...(await answer.json()), at: performance.now() };
  const was = last;
  last = now;
  if (!was) return;
  $("live").replaceChildren(...GAUGES.map(([name, value, shown], i) => {
    past[i].push(value(now, was, (now.at - was.at) / 1000));
    if (past[i].length > SECONDS_SHOWN) past[i].shift();
    const gauge = make("div", "gauge", name);
    gauge.append(make("b", "", shown(past[i].at(-1))), plot(past[i]));
    return gauge;
  }));
}

export function startLive() {
  $("gauges").onclick = () => {
    const on = $("live").classList.contains("hidden");
    show($("live"), on);
    $("gauges").setAttribute("aria-expanded", on);
    clearInterval(timer);
    timer = on ? setInterval(paint, 1000) : 0;
    if (on) paint();
  };
}
