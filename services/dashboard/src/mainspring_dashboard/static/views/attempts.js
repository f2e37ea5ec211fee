// A table of attempts, as the timeline has them: [id, function, worker, begin, end or null, state].
import { badge, h, table } from "../dom.js";
import { ago, duration, short } from "../format.js";

const columns = (where) => [
  ["Future", (row) => h("a", { href: `/futures/${row[0]}`, class: "mono nowrap", title: row[0] }, short(row[0]))],
  ["Function", (row) => row[1] || "without a name"],
  where && ["Worker", (row) => h("a", { href: `/workers/${row[2]}`, class: "mono nowrap" }, row[2])],
  ["State", (row) => badge(row[5])],
  ["Claimed", (row) => h("span", { class: "nowrap" }, ago(row[3]))],
  ["Took", (row) => (row[4] ? duration(row[4] - row[3]) : `${duration(Math.max(0, Date.now() / 1000 - row[3]))} so far`), "num"],
].filter(Boolean);

export const attempts = (rows, empty, where = true) => table(columns(where), rows, empty);
