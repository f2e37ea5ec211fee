// How far each function is: its futures by state as a bar, its pace, and how long one takes.
import { STATES, h, replace, table } from "../dom.js";
import { ago, count, duration, rate } from "../format.js";

const ORDER = ["realized", "failed", "claimed", "unclaimed", "waiting"];
const sum = (counts) => ORDER.reduce((all, state) => all + counts[state], 0);
export const ended = (counts) => counts.realized + counts.failed;

export function progress(row) {
  const all = sum(row.counts);
  const said = ORDER.filter((state) => row.counts[state]).map((state) => `${count(row.counts[state])} ${state}`).join(", ");
  return h("div", { class: "phases", role: "img", "aria-label": said, title: said },
    ORDER.filter((state) => row.counts[state]).map((state) => h("i", { class: state, style: { "flex-grow": String(row.counts[state] / all) } })));
}

const UNKNOWN = "when these began isn't recorded, as with calls of actors and what ended before it began";
const took = (row, seconds) => (seconds !== null ? duration(seconds) : ended(row.counts) ? h("span", { class: "soft", title: UNKNOWN }, "–") : "");

const columns = [
  ["Function", (row) => h("a", { href: `/futures?${new URLSearchParams({ q: row.name })}` }, row.name || "without a name")],
  ["Progress", progress, "progress"],
  ["Ended", (row) => `${count(ended(row.counts))} of ${count(sum(row.counts))}`, "num"],
  ["Failed", (row) => (row.counts.failed ? h("span", { class: "badge failed", title: STATES.failed }, count(row.counts.failed)) : ""), "num"],
  ["Running", (row) => row.counts.claimed || "", "num"],
  ["Per second", (row) => (row.rate ? rate(row.rate) : ""), "num"],
  ["Left", (row) => (row.left === null ? "" : duration(row.left)), "num"],
  ["Median", (row) => took(row, row.median), "num"],
  ["Slowest", (row) => took(row, row.slowest), "num"],
  ["Used", (row) => h("span", { class: "nowrap" }, ago(row.last))],
];

export default async function functions({ get }) {
  const body = h("div");
  const refresh = async () => {
    const found = await get("functions");
    replace(body, table(columns, found.functions, "No futures yet: submit one and its function appears here."),
      found.counting ? h("p", { class: "soft" }, "Counting for the first time: not all futures were seen yet.") : null);
  };
  await refresh();
  return { title: "Functions", element: h("div", {}, h("h1", {}, "Functions"), h("section", { class: "panel" }, body)), refresh };
}
