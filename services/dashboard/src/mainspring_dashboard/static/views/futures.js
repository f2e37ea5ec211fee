// A listing that can be filtered, searched and sorted; the address holds all of it, so that it can be shared.
import { STATES, badge, h, replace, table } from "../dom.js";
import { ago, duration, lookedThrough, short } from "../format.js";
import { pages } from "../pages.js";

const MOST = 100; // rows on a page

const waited = (row) => (row.started ? row.started - row.submitted : row.ended ? null : Date.now() / 1000 - row.submitted);
export const columns = [
  ["Future", (row) => h("a", { href: `/futures/${row.id}`, class: "mono nowrap", title: row.id }, short(row.id)), "wide"],
  ["Name", (row) => [h("a", { href: `/futures/${row.id}`, title: row.id }, row.name || short(row.id)), row.state === "realized" ? null : h("span", { class: "narrow soft" }, row.reason)], "words", "name"], // on a phone there is no room for a column of reasons
  ["State", (row) => badge(row.state), "", "state"],
  ["Why", (row) => row.reason, "reason wide"],
  ["Worker", (row) => (row.worker ? h("a", { class: "nowrap mono", href: `/workers/${row.worker}` }, row.worker) : ""), "wide", "worker"],
  ["Attempts", (row) => row.attempts, "num wide", "attempts"],
  ["Submitted", (row) => h("span", { class: "nowrap" }, ago(row.submitted)), "wide", "submitted"],
  ["Waited", (row) => (row.submitted && waited(row) !== null ? duration(Math.max(0, waited(row))) : ""), "num wide", "waited"],
  ["Ran", (row) => (row.started && row.state !== "waiting" ? duration(Math.max(0, (row.ended ?? Date.now() / 1000) - row.started)) : ""), "num", "ran"],
];

export default async function futures({ query, get }) {
  const asked = Object.fromEntries(["state", "q", "order", "sort", "descending", "session", "dataset"].map((name) => [name, query.get(name) ?? ""]));
  const { state, q, order, sort } = asked;
  const after = query.get("after") ?? "", skip = Number(query.get("skip") ?? 0) || 0;
  const link = (changed) => `/futures?${new URLSearchParams(Object.entries({ ...asked, ...changed }).filter(([, value]) => value))}`;
  const body = h("div");
  const said = q ? `No future matches “${q}”.` : state ? `No future is ${state}.` : "No futures yet: submit one and it appears here.";
  // Ids that a key names say nothing of when: the newest first is an order of times. The words of reasons the database alone has, and
  // all futures while they are still counted.
  const all = byId({ asked, after, link, body, said, get });
  const one = sort || asked.session || asked.dataset ? inMemory({ asked, skip, link, body, said, get })
    : order || q || after ? all : inMemory({ asked, skip, link, body, said, get, meanwhile: all });
  await one.refresh();
  const chosen = [["session", asked.session], ["dataset", asked.dataset]].filter(([, value]) => value);
  return {
    title: state ? `Futures: ${state}` : "Futures",
    element: h("div", {}, h("h1", {}, "Futures"),
      h("div", { class: "filters" },
        ["", ...Object.keys(STATES)].map((each) => h("a", { class: `chip ${each}`, title: STATES[each], href: link({ state: each }), "aria-current": each === state ? "true" : null }, each || "all")),
        [["", "newest first"], ["oldest", "oldest first"]].map(([each, name]) => h("a", { class: "chip", href: link({ order: each, sort: "", descending: "" }), "aria-current": each === order && !sort ? "true" : null }, name)),
        chosen.map(([name, value]) => h("a", { class: "chip", href: link({ [name]: "" }), "aria-current": "true", title: `of ${name} ${value}; choose it to see all` }, `${name} ${value.slice(0, 8)}… ✕`))),
      h("section", { class: "panel" }, body)),
    ...one,
  };
}

const sorting = ({ sort, descending, order }, link) => ({
  by: sort || "submitted", descending: sort ? Boolean(descending) : order !== "oldest",
  link: (by, down) => link(by === "submitted" ? { sort: "", descending: "", order: down ? "" : "oldest" } : { sort: by, descending: down ? "1" : "", order: "" }),
});

// In the order of ids, which is that of submission but for those that a key names, from the database, which has all of them.
function byId({ asked, after, link, body, said, get }) {
  const { state, q, order } = asked;
  let seeking = false, closed = false;
  const page = (from, limit) => get("futures", { state, q, after: from, limit, newest: order === "oldest" ? "" : 1 });
  const draw = (rows, following, note) => replace(body, table(columns, rows, note ?? said, sorting(asked, link)),
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
  return {
    async refresh() {
      if (seeking) return; // what a long search found stays until it is asked again
      const found = await page(after, MOST);
      seeking = Boolean((q || state) && found.after && found.futures.length < MOST);
      if (seeking) seek(found.futures, found.after).catch((error) => draw(found.futures, null, `The search ended early: ${error.message}`));
      else draw(found.futures, found.after);
    },
    close: () => { closed = true; },
  };
}

// In another order, or of one session or dataset: from what the server keeps of the newest futures; it says of how many.
function inMemory({ asked, skip, link, body, said, get, meanwhile = null }) {
  const order = asked.sort ? asked : { ...asked, sort: "submitted", descending: asked.order === "oldest" ? "" : "1" };
  return {
    async refresh() {
      const found = await get("futures", { ...order, order: "", skip, limit: MOST });
      if (found.counting && meanwhile) { await meanwhile.refresh(); return; }
      replace(body, table(columns, found.futures, said, sorting(asked, link)),
        pages({ skip, shown: found.futures.length, matches: found.matches, following: found.skip, size: MOST, link: (to) => link({ skip: to }) }),
        h("p", { class: "soft", id: "looked" }, `Sorted among ${lookedThrough(found)}.`, asked.q ? " In this order names, workers and ids are searched, reasons aren't." : ""));
    },
    close: () => meanwhile?.close(),
  };
}
