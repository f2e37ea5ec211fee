// What a program asked for, and published: the part of its future's page that others have not.
import { h, list, table } from "../dom.js";
import { count, short, size, time } from "../format.js";

const COLUMNS = [
  ["Request", (row) => count(row.number), "num"],
  ["Asked for", (row) => [row.kind, " ", h("b", {}, row.name)]],
  ["Outcome", (row) => row.outcome],
  ["Futures", (row) => row.futures.map((one) => h("a", { href: `/futures/${one}`, class: "mono nowrap" }, short(one), " "))],
  ["Recorded", (row) => h("span", { class: "nowrap" }, time(row.at))],
];

export function program(found) {
  if (!found) return null;
  const { made, requests, published } = found;
  return h("section", { class: "panel program" }, h("h2", {}, "Program"),
    list(Object.entries(published).map(([name, bytes]) => [`published ${name}`, size(bytes)])),
    h("p", { class: "soft" }, made > requests.length ? `The latest ${count(requests.length)} of ${count(made)} requests:` : "What it asked for, the latest first. The next attempt finds all of it again."),
    table(COLUMNS, requests, "It has asked for nothing yet."));
}
