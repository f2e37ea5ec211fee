// One name: its holder, those who wait, and what happened to it.
import { buttons } from "../actions.js";
import { h, list, replace, table } from "../dom.js";
import { ago, duration, time } from "../format.js";

export default async function lease({ parameters: [name], get }) {
  const body = h("div"), renewed = h("span"), since = h("span");
  let last = "";
  const refresh = async () => {
    const { held, events } = await get(`leases/${encodeURIComponent(name)}`);
    renewed.textContent = ago(held?.renewed);
    since.textContent = held ? `${time(held.acquired)} (${ago(held.acquired)})` : "";
    const text = JSON.stringify([{ ...held, renewed: 0 }, events]);
    if (text === last) return; // a question that was asked stays
    last = text;
    replace(body,
      h("section", { class: "panel" }, h("h2", {}, held ? "Held" : "Nobody holds it"), held ? list([
        ["holder", h("span", { class: "mono" }, `${held.host}:${held.pid}`)], ["mode", held.mode], ["token", h("span", { class: "mono" }, held.token)],
        ["time to live", duration(held.ttl)], ["longest hold", held.max_hold ? duration(held.max_hold) : null],
        ["held since", since], ["renewed", renewed],
        ["maintained by", held.maintainers.map((one) => `${one.role} ${one.host}:${one.pid}`).join(", ")],
      ]) : null, held ? buttons(`leases/${encodeURIComponent(name)}`, [["Release", { action: "release" }]], refresh) : null),
      held && Object.keys(held.meta).length ? h("section", { class: "panel" }, h("h2", {}, "What its holder says"), list(Object.entries(held.meta))) : null,
      held?.waiters.length ? h("section", { class: "panel" }, h("h2", {}, "Waiting"), table([
        ["Process", (row) => h("span", { class: "mono" }, `${row.host}:${row.pid}`)], ["Mode", (row) => row.mode], ["Since", (row) => ago(row.since)]], held.waiters, "")) : null,
      h("section", { class: "panel" }, h("h2", {}, "History"), table([
        ["When", (row) => h("span", { class: "nowrap" }, time(row.at))], ["Event", (row) => row.kind], ["By", (row) => h("span", { class: "mono" }, row.by)], ["Why", (row) => row.why, "reason"]],
      events, "Nothing has happened yet.")));
  };
  await refresh();
  return { title: `Lease ${name}`, element: h("div", {}, h("h1", {}, name), body), refresh };
}
