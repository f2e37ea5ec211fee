// Lists in partitions: each step is a dataset of its own, with a future for each partition.
import { h, replace, table } from "../dom.js";
import { ago, count, duration, lookedThrough, short } from "../format.js";
import { pages } from "../pages.js";
import { ended, progress } from "./functions.js";

const MOST = 100;
const columns = [
  ["Dataset", (row) => h("a", { href: `/futures?dataset=${row.id}`, title: `the partitions of ${row.id}` }, row.name || "without a name")],
  ["First partition", (row) => h("a", { class: "mono nowrap", href: `/futures/${row.first}`, title: `what it was made from: ${row.name}` }, short(row.first)), "wide"],
  ["Progress", progress, "progress"],
  ["Partitions", (row) => `${count(ended(row.counts))} of ${count(row.partitions)}`, "num"],
  ["Failed", (row) => (row.counts.failed ? h("span", { class: "badge failed" }, count(row.counts.failed)) : ""), "num"],
  ["Workers", (row) => row.workers || "", "num wide"],
  ["Took", (row) => (row.ended && row.submitted ? duration(Math.max(0, row.ended - row.submitted)) : `${duration(Math.max(0, Date.now() / 1000 - row.submitted))} so far`), "num"],
  ["Begun", (row) => h("span", { class: "nowrap" }, ago(row.submitted)), "wide"],
];

export default async function datasets({ query, get }) {
  const skip = Number(query.get("skip") ?? 0) || 0;
  const body = h("div");
  const refresh = async () => {
    const found = await get("datasets", { skip, limit: MOST });
    replace(body, table(columns, found.datasets, "No datasets: client.dataset(parts) makes one."),
      pages({ skip, shown: found.datasets.length, following: found.skip, size: MOST, link: (to) => `/datasets?skip=${to}` }),
      h("p", { class: "soft" }, `Among ${lookedThrough(found)}. A partition that was deleted, or was a future before, is not counted.`));
  };
  await refresh();
  return { title: "Datasets", element: h("div", {}, h("h1", {}, "Datasets"), h("section", { class: "panel" }, body)), refresh };
}
