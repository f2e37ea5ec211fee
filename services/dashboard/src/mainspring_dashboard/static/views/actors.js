// Objects that live in workers' processes: where each takes calls, what waits for it, and why one is no more.
import { h, replace, table } from "../dom.js";
import { ago, count, short } from "../format.js";

const LIVING = { claimed: "up", unclaimed: "not begun", waiting: "waiting", failed: "ended" };
const MANY = 100; // calls that the server counts to

const columns = [
  ["Actor", (row) => [h("a", { href: `/futures/${row.id}`, title: row.id }, row.name || row.kind || short(row.id)), row.state === "claimed" ? null : h("span", { class: "narrow soft" }, row.reason)], "words"],
  ["Class", (row) => row.kind, "wide"],
  ["State", (row) => h("span", { class: `badge ${row.state}`, title: `its future is ${row.state}` }, row.state === "claimed" && !row.place ? "starting" : LIVING[row.state] ?? row.state)],
  ["Why", (row) => (row.state === "claimed" ? "" : row.reason), "reason wide"],
  ["Worker", (row) => (row.worker ? h("a", { class: "mono nowrap", href: `/workers/${row.worker}` }, row.worker) : "")],
  ["Takes calls at", (row) => h("span", { class: "mono nowrap" }, row.place ?? ""), "wide"],
  ["Starts", (row) => row.starts || "", "num"],
  ["Calls waiting", (row) => (row.waiting ? `${count(row.waiting)}${row.waiting >= MANY ? " or more" : ""}` : ""), "num"],
  ["Made", (row) => h("span", { class: "nowrap" }, ago(row.submitted)), "wide"],
  ["Since", (row) => h("span", { class: "nowrap" }, ago(row.ended ?? row.started)), "wide"],
];

export default async function actors({ query, get }) {
  const after = query.get("after") ?? "";
  const body = h("div");
  const refresh = async () => {
    const found = await get("actors", { after });
    replace(body, table(columns, found.actors, "No actors: client.actor(Class) makes one."),
      found.after ? h("p", {}, h("a", { href: `/actors?after=${found.after}`, rel: "next" }, "Earlier actors →")) : null);
  };
  await refresh();
  return { title: "Actors", element: h("div", {}, h("h1", {}, "Actors"), h("section", { class: "panel" }, body,
    h("p", { class: "soft" }, "The newest first, those that ended too. Calls waiting are those that were recorded before they ran; what its process has in hand is not among them."))), refresh };
}
