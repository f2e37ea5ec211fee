// Who is connected: processes with clients, with leases, and workers; what each holds and what it waits for.
import { h, replace, table } from "../dom.js";
import { ago, count, lookedThrough } from "../format.js";
import { pages } from "../pages.js";

const MOST = 100;
const lease = (name) => h("a", { href: `/leases/${encodeURIComponent(name)}` }, name);
const lines = (rows, shown, all) => [...rows.map((row) => h("div", {}, row)), all > shown.length ? h("div", { class: "soft" }, `and ${count(all - shown.length)} more`) : null];

const waits = (row) => [
  ...lines(row.waits.map((one) => [lease(one.name), h("span", { class: "soft" }, ` for ${ago(one.since).replace(" ago", "")}, held by ${one.holder}`)]), row.waits, row.waits_in_all),
  ...row.clients.filter((one) => one.futures).map((one) => h("div", {}, h("a", { href: `/futures?session=${one.session}&sort=state&descending=1`, title: `those that session ${one.session} submitted` }, `${count(one.futures)} future${one.futures === 1 ? "" : "s"}`), h("span", { class: "soft" }, " not ended"))),
];
// A module that was run with -m is called by its package.
const program = (command) => { const names = command.split("/"); return names.at(-1) === "__main__.py" ? names.at(-2) ?? command : names.at(-1); };
const parts = (row) => [row.worker ? h("a", { class: "mono nowrap", href: `/workers/${row.worker}` }, "worker") : null, row.clients_in_all ? `${row.clients_in_all === 1 ? "client" : `${count(row.clients_in_all)} clients`}` : null, row.command ? h("span", { title: row.command }, program(row.command)) : null]
  .filter(Boolean).flatMap((part, at) => (at ? [" · ", part] : [part]));

const columns = [
  ["Process", (row) => [h("span", { class: "mono nowrap" }, `${row.host}:${row.pid}`), h("span", { class: "narrow soft" }, parts(row))]],
  ["What it is", parts, "wide words"],
  ["Waits for", waits, "words"],
  ["Holds", (row) => lines(row.holds.map(lease), row.holds, row.holds_in_all), "words"],
  ["Last sign of life", (row) => h("span", { class: "nowrap" }, ago(row.beat))],
  ["Started", (row) => h("span", { class: "nowrap" }, ago(row.started)), "wide"],
];

export default async function sessions({ query, get }) {
  const skip = Number(query.get("skip") ?? 0) || 0;
  const body = h("div");
  const refresh = async () => {
    const found = await get("sessions", { skip, limit: MOST });
    replace(body, table(columns, found.sessions, "Nobody is connected."),
      pages({ skip, shown: found.sessions.length, matches: found.processes, following: found.skip, size: MOST, link: (to) => `/sessions?skip=${to}` }),
      h("p", { class: "soft" }, `Who waits for a lease comes first. Futures are counted among ${lookedThrough(found)}.`, found.cut ? " There are more sessions or leases than the server looks through: 2,000 sessions and 1,000 rows of leases." : ""));
  };
  await refresh();
  return { title: "Sessions", element: h("div", {}, h("h1", {}, "Sessions"), h("section", { class: "panel" }, body)), refresh };
}
