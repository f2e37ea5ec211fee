// A listing that can be filtered by state and searched; the address holds both and the order, so that it can be shared.
import { STATES, badge, h, replace, table } from "../dom.js";
import { ago, duration, short } from "../format.js";

const MOST = 100; // rows on a page

export const columns = [
  ["Future", (row) => h("a", { href: `/futures/${row.id}`, class: "mono nowrap", title: row.id }, short(row.id))],
  ["Name", (row) => [row.name, row.state === "realized" ? null : h("span", { class: "narrow soft" }, row.reason)]], // on a phone there is no room for a column of reasons
  ["State", (row) => badge(row.state)],
  ["Why", (row) => row.reason, "reason wide"],
  ["Worker", (row) => (row.worker ? h("a", { class: "nowrap mono", href: `/workers/${row.worker}` }, row.worker) : ""), "wide"],
  ["Attempts", (row) => row.attempts, "num wide"],
  ["Submitted", (row) => h("span", { class: "nowrap" }, ago(row.submitted)), "wide"],
  ["Waited", (row) => (row.started && row.submitted ? duration(Math.max(0, row.started - row.submitted)) : ""), "num wide"],
  ["Ran", (row) => (row.started && row.state !== "waiting" ? duration(Math.max(0, (row.ended ?? Date.now() / 1000) - row.started)) : ""), "num"],
];

export default async function futures({ query, get }) {
  const state = query.get("state") ?? "", q = query.get("q") ?? "", after = query.get("after") ?? "", order = query.get("order") ?? "";
  const body = h("div");
  let seeking = false, closed = false;
  const link = (changed) => `/futures?${new URLSearchParams(Object.entries({ state, q, order, ...changed }).filter(([, value]) => value))}`;
  const page = (from, limit) => get("futures", { state, q, after: from, limit, newest: order === "oldest" ? "" : 1 });
  const said = q ? `No future matches “${q}”.` : state ? `No future is ${state}.` : "No futures yet: submit one and it appears here.";
  const draw = (rows, following, note) => replace(body, table(columns, rows, note ?? said),
    note && rows.length ? h("p", { class: "soft" }, note) : null,
    following && !note ? h("p", {}, h("a", { href: link({ after: following }), rel: "next" }, "Further futures →")) : null);
  // The server looks through a part of the futures at a time; the search goes on until the page is full or all were seen.
  const seek = async (rows, following) => {
    while (following && rows.length < MOST && !closed) {
      draw(rows, following, "Searching further…");
      const found = await page(following, MOST - rows.length);
      rows.push(...found.futures);
      following = found.after;
    }
    if (!closed) draw(rows, following);
  };
  const refresh = async () => {
    if (seeking) return; // what a long search found stays until it is asked again
    const found = await page(after, MOST);
    seeking = Boolean((q || state) && found.after && found.futures.length < MOST);
    if (seeking) seek(found.futures, found.after).catch((error) => draw(found.futures, null, `The search ended early: ${error.message}`));
    else draw(found.futures, found.after);
  };
  await refresh();
  return {
    title: state ? `Futures: ${state}` : "Futures",
    element: h("div", {}, h("h1", {}, "Futures"),
      h("div", { class: "filters" },
        ["", ...Object.keys(STATES)].map((one) => h("a", { class: `chip ${one}`, title: STATES[one], href: link({ state: one, after: "" }), "aria-current": one === state ? "true" : null }, one || "all")),
        [["", "newest first"], ["oldest", "oldest first"]].map(([one, name]) => h("a", { class: "chip", href: link({ order: one, after: "" }), "aria-current": one === order ? "true" : null }, name))),
      h("section", { class: "panel" }, body)),
    refresh,
    close: () => { closed = true; },
  };
}
