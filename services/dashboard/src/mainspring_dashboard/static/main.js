// The frame: which view the address names, the live stream, the search, the theme.
import { allow } from "./actions.js";
import { AWAY, get, stream } from "./api.js";
import { h, replace } from "./dom.js";
import actors from "./views/actors.js";
import datasets from "./views/datasets.js";
import future from "./views/future.js";
import futures from "./views/futures.js";
import functions from "./views/functions.js";
import heap from "./views/heap.js";
import ids from "./views/ids.js";
import lease from "./views/lease.js";
import leases from "./views/leases.js";
import overview from "./views/overview.js";
import sessions from "./views/sessions.js";
import task from "./views/task.js";
import timeline from "./views/timeline.js";
import worker from "./views/worker.js";
import workers from "./views/workers.js";

const ROUTES = [
  [/^\/$/, overview], [/^\/futures$/, futures], [/^\/futures\/([^/]+)$/, future], [/^\/functions$/, functions], [/^\/timeline$/, timeline],
  [/^\/actors$/, actors], [/^\/datasets$/, datasets], [/^\/sessions$/, sessions],
  [/^\/workers$/, workers], [/^\/workers\/([^/]+)$/, worker],
  [/^\/leases$/, leases], [/^\/leases\/(.+)$/, lease], [/^\/heap$/, heap], [/^\/heap\/([^/]+)$/, task], [/^\/ids$/, ids],
];
const SILENT_MS = 10_000;
const root = document.getElementById("view");
const problem = document.getElementById("problem");
let current = null; // {update?(snapshot), refresh?(), close?()} of the view that is shown
let shown = 0; // how many views were begun: an answer for an earlier one is dropped
let snapshot = null;
let heard = null; // when the last sample came; one comes every second
let failing = null; // why the view that is shown could not be read again

export function go(address) {
  history.pushState(null, "", address);
  show();
}

async function show() {
  const mine = ++shown;
  const route = ROUTES.find(([pattern]) => pattern.test(location.pathname));
  current?.close?.();
  current = failing = null;
  for (const link of document.querySelectorAll("nav a")) {
    const path = link.getAttribute("href");
    const here = path === "/" ? location.pathname === "/" : location.pathname.startsWith(path);
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    if (here) link.parentElement.scrollLeft = link.offsetLeft - (link.parentElement.clientWidth - link.offsetWidth) / 2; // on a phone they don't all fit
  }
  const query = new URLSearchParams(location.search);
  const search = document.querySelector("#search input");
  if (document.activeElement !== search) search.value = location.pathname === "/futures" ? query.get("q") ?? "" : ""; // else somebody types
  if (!route) { replace(root, h("h1", {}, "There is no such page")); return; }
  const [pattern, view] = route;
  try {
    const made = await view({ parameters: pattern.exec(location.pathname).slice(1).map(decodeURIComponent), query, get, go, snapshot });
    if (mine !== shown) { made.close?.(); return; }
    replace(root, made.element);
    current = made;
    document.title = `${made.title} · Mainspring`;
    made.shown?.();
    if (snapshot) made.update?.(snapshot);
  } catch (error) {
    if (mine === shown) replace(root, h("h1", {}, error.status === 404 ? "Not found" : "This could not be read"), h("p", {}, error.message));
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.target) return;
  event.preventDefault();
  go(link.getAttribute("href"));
  window.scrollTo(0, 0);
});
window.addEventListener("popstate", show);
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = new FormData(event.target).get("q").trim();
  const isId = /^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i.test(text);
  go(isId ? `/futures/${text}` : text ? `/futures?${new URLSearchParams({ q: text })}` : "/futures");
});
document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("mainspring-theme", dark ? "light" : "dark");
  show();
});

allow((await get("overview", { since: Date.now() / 1000 }).catch(() => ({}))).actions); // before the first page is drawn
const live = document.getElementById("live");
stream((sample) => {
  snapshot = sample;
  heard = Date.now();
  showLive(true); // also after a silence
  allow(sample.actions);
  document.getElementById("cluster").textContent = sample.cluster;
  document.getElementById("cluster").title = sample.database;
  tell(sample.problem ? `The database doesn't answer: ${sample.problem}` : failing);
  current?.update?.(sample);
}, (on) => {
  if (on && !current && live.classList.contains("off")) show(); // what could not be read may be there now
  showLive(on, AWAY);
  if (!on) tell(AWAY);
});

function showLive(on, otherwise) {
  live.className = `dot ${on ? "on" : "off"}`;
  live.title = on ? "live" : otherwise;
}

// What is shown beside it was read before, and is dimmed.
function tell(text) {
  problem.hidden = !text;
  problem.textContent = text ?? "";
  root.classList.toggle("old", Boolean(text));
}

setInterval(() => {
  if (document.hidden || heard === null || Date.now() - heard < SILENT_MS) return;
  showLive(false, "No news from the dashboard's server: what is shown is old.");
  if (problem.hidden) tell(live.title);
}, 1000);
setInterval(() => { if (!document.hidden) current?.refresh?.().then(() => { failing = null; }, (error) => { failing = error.message; tell(failing); }); }, 2000);
show();
