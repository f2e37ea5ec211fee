// A listing that can be filtered by state and searched; the address holds both, so that it can be shared.
import { badge, h, replace, table } from "../dom.js";
import { ago, duration, short } from "../format.js";

const STATES = ["", "waiting", "unclaimed", "claimed", "realized", "failed"];

export const columns = [
  ["Future", (row) => h("a", { href: `/futures/${row.id}`, class: "mono nowrap", title: row.id }, short(row.id))],
  ["Name", (row) => row.name],
  ["State", (row) => badge(row.state)],
  ["Why", (row) => row.reason, "reason"],
  ["Worker", (row) => h("span", { class: "nowrap mono" }, row.worker ?? "")],
  ["Attempts", (row) => row.attempts, "num"],
  ["Submitted", (row) => h("span", { class: "nowrap" }, ago(row.submitted))],
  ["Took", (row) => (row.ended && row.submitted ? duration(row.ended - row.submitted) : ""), "num"],
];

export default async function futures({ query, get }) {
  const state = query.get("state") ?? "", q = query.get("q") ?? "", after = query.get("after") ?? "";
  const body = h("div");
  const link = (changed) => `/futures?${new URLSearchParams(Object.entries({ state, q, ...changed }).filter(([, value]) => value))}`;
  const refresh = async () => {
    const found = await get("futures", { state, q, after, limit: 100 });
    const said = q ? `No future matches “${q}”` : state ? `No future is ${state}` : "No futures yet: submit one and it appears here";
    replace(body, table(columns, found.futures, `${said}${found.after ? " up to here" : ""}.`),
      found.after ? h("p", {}, h("a", { href: link({ after: found.after }), rel: "next" }, "Further futures →")) : null);
  };
  await refresh();
  return {
    title: state ? `Futures: ${state}` : "Futures",
    element: h("div", {}, h("h1", {}, "Futures"),
      h("div", { class: "filters" }, STATES.map((one) => h("a", { class: `chip ${one}`, href: link({ state: one, after: "" }), "aria-current": one === state ? "true" : null }, one || "all"))),
      h("section", { class: "panel" }, body)),
    refresh,
  };
}
