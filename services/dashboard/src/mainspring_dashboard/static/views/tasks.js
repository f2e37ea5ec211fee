// Tasks of the heap: all of them, searched by the server, page by page.
import { h, replace, table } from "../dom.js";
import { ago, duration, short } from "../format.js";

const MOST = 100;
const state = (row) => (row.dead ? h("span", { class: "badge failed" }, "dead letter") : row.paused ? h("span", { class: "badge waiting" }, "paused") : h("span", { class: `badge ${{ running: "claimed", scheduled: "unclaimed" }[row.state] ?? "unknown"}` }, row.state));
export const taskLink = (id, name) => h("a", { href: `/heap/${id}`, title: id }, name || short(id));

const columns = [
  ["Task", (row) => taskLink(row.id, row.name)], ["State", state], ["Partition", (row) => row.partition, "wide"],
  ["Due", (row) => (row.state !== "scheduled" ? "" : row.due_in > 0 ? `in ${duration(row.due_in)}` : `${duration(-row.due_in)} ago`)],
  ["Cadence", (row) => duration(row.cadence), "num wide"], ["Run", (row) => row.gen, "num"], ["Started", (row) => (row.started ? h("span", { class: "nowrap" }, ago(row.started)) : "")],
  ["Last error", (row) => row.last_error, "reason wide"],
];

export async function taskList({ query, get, go }) {
  const q = query.get("q") ?? "", after = query.get("after") ?? "";
  const body = h("div");
  const refresh = async () => {
    const found = await get("heap/tasks", { q, after, limit: MOST });
    replace(body, table(columns, found.tasks, q ? `No task here matches “${q}”.` : "No task."),
      found.after ? h("p", {}, h("a", { href: `/heap?${new URLSearchParams({ q, after: found.after })}`, rel: "next" }, "Further tasks →")) : null);
  };
  const form = h("form", { class: "filters", on: { submit: (event) => { event.preventDefault(); go(`/heap?${new URLSearchParams({ q: new FormData(event.target).get("q") })}`); } } },
    h("input", { name: "q", value: q, placeholder: "Name, partition or error", "aria-label": "Find a task", type: "search" }));
  await refresh();
  return { element: h("section", { class: "panel" }, h("h2", {}, "Tasks"), form, body), refresh };
}
