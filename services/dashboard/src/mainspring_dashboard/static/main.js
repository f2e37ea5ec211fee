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
const SILENT_MS = 10_000, SLOW_MS = 3000, REFRESH_MS = 2000;
const root = document.getElementById("view");
const problem = document.getElementById("problem");
let current = null; // {update?(snapshot), refresh?(), close?()} of the view that is shown
let shown = 0; // how many views were begun: an answer for an earlier one is dropped
let leaving = new AbortController(); // of the view that is shown, or being read: it gives up what that asked for
let again = false; // whether the view could not be read for want of the server, which may be there now
let snapshot = null;
let heard = Date.now(); // when the last sample came; one comes every second
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
  again = false;
  leaving.abort();
  leaving = new AbortController();
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
  const [pattern, view] = route, { signal } = leaving;
  const slow = setTimeout(() => { if (mine === shown) replace(root, h("p", { class: "soft" }, "Waiting for the dashboard's server …")); }, SLOW_MS);
  try {
    const parameters = pattern.exec(location.pathname).slice(1).map(decodeURIComponent);
    const made = await view({ parameters, query, get: (path, asked) => get(path, asked, signal), go, snapshot });
    if (mine !== shown) { made.close?.(); return; }
    replace(root, made.element);
    current = made;
    document.title = `${made.title} · Mainspring`;
    made.shown?.();
    if (snapshot) made.update?.(snapshot);
  } catch (error) {
    if (mine !== shown) return;
    replace(root, h("h1", {}, error.status === 404 ? "Not found" : "This could not be read"), h("p", {}, error.message));
    again = error.status === undefined || error.status >= 500;
  } finally {
    clearTimeout(slow);
  }
}

// At most one at a time: a browser has six connections to a host, and whoever goes to another page needs one.
async function refresh() {
  const mine = current;
  if (!mine?.refresh || mine.refreshing) return;
  mine.refreshing = true;
  try {
    await mine.refresh();
    if (mine === current) failing = null;
  } catch (error) {
    if (mine === current) tell(failing = error.message);
  }
  mine.refreshing = false;
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

const live = document.getElementById("live");
setInterval(() => {
  if (document.hidden || Date.now() - heard < SILENT_MS) return;
  showLive(false, `No news from the dashboard's server${snapshot ? ": what is shown is old." : " yet; waiting for it."}`);
  if (problem.hidden) tell(live.title);
}, 1000);
setInterval(() => { if (!document.hidden) again ? show() : refresh(); }, REFRESH_MS);
// Before the first page is drawn, if it is known by then; a sample tells of it, too.
await Promise.race([get("overview", { since: Date.now() / 1000 }).then((found) => allow(found.actions), () => {}), new Promise((go) => setTimeout(go, SLOW_MS))]);
stream((sample) => {
  snapshot = sample;
  heard = Date.now();
  showLive(true); // also after a silence
  if (allow(sample.actions)) show();
  document.getElementById("cluster").textContent = sample.cluster;
  document.getElementById("cluster").title = sample.database;
  tell(sample.problem ? `The database doesn't answer: ${sample.problem}` : failing);
  current?.update?.(sample);
}, (on) => {
  if (on && again) show(); // what could not be read may be there now
  showLive(on, AWAY);
  if (!on) tell(AWAY);
});

function showLive(on, otherwise) {
  live.className = `dot ${on ? "on" : "off"}`;
  live.title = on ? "live" : otherwise;
}

// What is shown beside it was read before, and is dimmed.
function tell(text) {
  text ||= document.documentElement.dataset.incomplete; // until the page is loaded again
  problem.hidden = !text;
  problem.textContent = text ?? "";
  root.classList.toggle("old", Boolean(text));
}

show();
