// The live workers: what they offer and what of it is in use.
import { h, replace } from "../dom.js";
import { ago, count, size } from "../format.js";

const MOST = 100; // on a page

function meter(name, total, free, show) {
  if (!total) return null;
  const used = free === null ? 0 : total - free;
  const share = Math.max(0, Math.min(1, used / total));
  return h("div", { class: "meter" }, h("span", { class: "soft" }, name),
    h("div", { class: `bar${share > 0.9 ? " full" : ""}`, role: "meter", "aria-label": name, "aria-valuenow": used, "aria-valuemin": 0, "aria-valuemax": total }, h("i", { style: { width: `${share * 100}%` } })),
    h("span", {}, `${show(used)} / ${show(total)}`));
}

const number = (value) => String(Math.round(value * 1000) / 1000);

// What is reserved of what a worker offers, and beside it what is really used.
export const meters = (one) => [
  meter("slots", one.slots, one.free_slots, count), meter("cpu", one.cpu, one.free_cpu, number), meter("memory", one.ram, one.free_ram, size),
  meter("gpu", one.gpu, one.free_gpu, number), meter("objects", one.object_store, one.free_object_store, size),
  one.memory_used === null ? null : h("p", { class: "soft" }, `Really used: ${one.cpu_used === null ? "" : `${one.cpu_used.toFixed(1)} processors, `}${size(one.memory_used)} of memory`),
];

export default async function workers({ get }) {
  const body = h("div", { class: "workers" });
  const draw = (rows) => replace(body, rows.length ? rows.slice(0, MOST).map((one) => h("section", { class: "panel" },
    h("h2", {}, h("a", { class: "mono", href: `/workers/${one.address}` }, one.address), " ", h("span", { class: "soft" }, `${one.host} pid ${one.pid}`)),
    meters(one),
    h("p", { class: "soft" }, `${count(one.claims)} claimed, ${count(one.assignments)} assigned · started ${ago(one.started)} · last sign of life ${ago(one.beat)}`))) :
    h("div", { class: "empty" }, "No worker is alive: start one with futures-worker run."),
    rows.length > MOST ? h("p", { class: "soft" }, `${rows.length - MOST} more workers`) : null);
  draw((await get("workers")).workers);
  return { title: "Workers", element: h("div", {}, h("h1", {}, "Workers"), body), update: (snapshot) => { if (!snapshot.problem) draw(snapshot.workers); } };
}
