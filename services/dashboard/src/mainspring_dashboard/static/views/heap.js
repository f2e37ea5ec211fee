// Tasks triggered by writes: how far behind, what starts next, what is on the heap.
import { code, h, list, replace, table } from "../dom.js";
import { ago, clock, count, duration, size } from "../format.js";
import { taskLink, taskList } from "./tasks.js";

const LATE_SECONDS = 5; // as the server has it

// First of all: what lags, since when, and what to do.
function behind(lagging) {
  if (!lagging.length) return h("p", { class: "soft", id: "lagging" }, "Nothing lags.");
  return h("section", { class: "panel attention", id: "lagging" }, h("h2", {}, "The heap lags"), h("ul", {}, lagging.map((one) => h("li", { class: "failed" },
    h("b", { title: "problem" }, "✕"), h("span", {}, one.what, one.task ? [": ", taskLink(one.task.id, one.task.name)] : null),
    h("span", { class: "why" }, code(one.do)), h("span", { class: "soft nowrap" }, `since ${clock(one.since)} UTC, ${ago(one.since).replace(" ago", "")}`)))));
}

export default async function heap(context) {
  const { get } = context;
  const tasks = await taskList(context);
  const body = h("div");
  const refresh = async () => {
    const found = await get("heap");
    tasks.element.hidden = !found.present;
    if (!found.present) { replace(body, h("section", { class: "panel" }, h("div", { class: "empty" }, "This cluster has no heap: nothing was ever scheduled by a write."))); return; }
    const lag = found.lag;
    const tile = (value, name, tone = "") => h("div", { class: `tile ${tone}` }, h("b", {}, value), h("span", {}, name));
    replace(body, behind(found.lagging),
      h("div", { class: "tiles" }, tile(duration(lag.oldest_due_age), "oldest due task waits", lag.oldest_due_age > LATE_SECONDS ? "failed" : "realized"), tile(duration(lag.dirty_lag), "oldest write not yet seen"),
        tile(duration(lag.cursor_lag), "since done items were last removed"), tile(count(lag.outbox_depth), "runs not yet on the heap"), tile(count(lag.active), "tasks active"), tile(count(lag.running), "running", "claimed"), tile(count(lag.dead_letters), "dead letters", lag.dead_letters ? "failed" : "")),
      found.error ? h("section", { class: "panel failed" }, h("h2", {}, "The store doesn't answer"), h("p", {}, found.error)) : null,
      h("div", { class: "grid" },
        h("section", { class: "panel" }, h("h2", {}, "Next to start"), table([
          ["Task", (row) => taskLink(row.id, row.name)], ["Due", (row) => (row.due_in > 0 ? `in ${duration(row.due_in)}` : `${duration(-row.due_in)} ago`)],
          ["Cadence", (row) => duration(row.cadence), "num"], ["Run", (row) => row.gen, "num"], ["Last error", (row) => row.last_error, "reason"]], found.next, "Nothing is scheduled.")),
        h("section", { class: "panel" }, h("h2", {}, "Since the beginning"), list([["starts", count(lag.starts)], ["finished", count(lag.finishes)], ["failures", count(lag.failures)], ["taken over from the dead", count(lag.retakes)], ["deadlines missed", count(lag.missed_deadlines)]]))),
      found.buckets ? h("section", { class: "panel" }, h("h2", {}, `Buckets of ${found.store}`), table([
        ["Due", (row) => (row.in > 0 ? `in ${duration(row.in)}` : `${duration(-row.in)} ago`)], ["Objects", (row) => count(row.objects), "num"], ["Items", (row) => count(row.items), "num"], ["Size", (row) => size(row.bytes), "num"]], found.buckets, "The heap is empty.")) : null,
      found.dead_letters.length ? h("section", { class: "panel" }, h("h2", {}, "Dead letters"), table([["Task", (row) => taskLink(row.task, row.name)], ["Run", (row) => row.gen, "num"], ["Error", (row) => row.error, "reason"]], found.dead_letters, "")) : null);
  };
  await refresh();
  return { title: "Heap", element: h("div", {}, h("h1", {}, "Heap"), body, tasks.element), refresh: async () => { await refresh(); await tasks.refresh(); } };
}
