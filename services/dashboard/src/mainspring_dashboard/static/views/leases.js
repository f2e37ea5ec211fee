// Who holds what, and who waits for it.
import { h, replace, table } from "../dom.js";
import { ago, duration } from "../format.js";

export default async function leases({ query, get, go }) {
  const prefix = query.get("prefix") ?? "", after = query.get("after") ?? "";
  const body = h("div");
  const columns = [
    ["Lease", (row) => [h("a", { href: `/leases/${encodeURIComponent(row.name)}` }, row.name), row.service ? h("span", { class: "soft", title: "held by a service, or for a memoized call" }, " of a service") : null]],
    ["Holder", (row) => h("span", { class: "mono nowrap" }, `${row.host}:${row.pid}`)],
    ["Mode", (row) => (row.slots > 1 ? `${row.mode} (${row.holders} of ${row.slots})` : row.mode)],
    ["Time to live", (row) => duration(row.ttl), "num"], ["Held since", (row) => ago(row.acquired)], ["Renewed", (row) => ago(row.renewed)],
    ["Waiting", (row) => row.waiters.length || "", "num"],
  ];
  const refresh = async () => {
    const found = await get("leases", { prefix, after });
    replace(body, table(columns, found.leases, prefix ? `No lease that starts with “${prefix}” is held.` : "No lease is held."),
      found.after ? h("p", {}, h("a", { href: `/leases?${new URLSearchParams({ prefix, after: found.after })}`, rel: "next" }, "Further leases →")) : null);
  };
  await refresh();
  const form = h("form", { class: "filters", on: { submit: (event) => { event.preventDefault(); go(`/leases?${new URLSearchParams({ prefix: new FormData(event.target).get("prefix") })}`); } } },
    h("input", { name: "prefix", value: prefix, placeholder: "Names that start with …", "aria-label": "Names that start with", type: "search" }));
  return { title: "Leases", element: h("div", {}, h("h1", {}, "Leases"), form, h("section", { class: "panel" }, body)), refresh };
}
