// How the cluster is: futures by state, rates and latencies over time, workers' slots.
import { chart } from "../charts.js";
import { STATES, code, h, list, replace } from "../dom.js";
import { ago, count, duration, rate } from "../format.js";

const KEPT_SECONDS = 900;
const SLOTS = "a worker runs as many tasks at once; an actor takes none";

export default async function overview({ get }) {
  const answer = await get("overview", { since: Date.now() / 1000 - KEPT_SECONDS });
  let samples = answer.history;
  const tiles = h("div", { class: "tiles" });
  const charts = [
    chart({ title: "Futures that have not ended, by state", stacked: true, whole: true, format: count,
      series: ["waiting", "unclaimed", "claimed"].map((state) => ({ label: state, colour: state, fill: true, value: (s) => s.counts?.[state] })) }),
    chart({ title: "Ends per second", format: rate, series: [
      { label: "done/s", colour: "realized", fill: true, value: (s) => s.finished },
      { label: "failed/s", colour: "failed", rare: true, value: (s) => s.failed }] }),
    chart({ title: "From submit to result", format: duration, log: true, series: [
      { label: "median", colour: "claimed", value: (s) => s.p50 || null },
      { label: "99 %", colour: "unclaimed", value: (s) => s.p99 || null }] }),
    chart({ title: "Slots", whole: true, format: count, series: [
      { label: "busy", colour: "claimed", fill: true, value: (s) => s.busy },
      { label: "all", colour: "soft", value: (s) => s.slots }] }),
  ];
  const note = h("p", { class: "soft" });
  const attention = h("div"), first = h("div");
  const words = h("details", { class: "soft words" }, h("summary", {}, "What these words mean"), list([...Object.entries(STATES), ["slots", SLOTS]]));
  const plots = h("div", { class: "grid two" }, charts.map((one) => one.element));
  const refresh = async () => replace(attention, troubles(await get("attention")));
  const draw = (snapshot) => {
    const sample = snapshot.sample;
    if (!sample) { replace(tiles, h("div", { class: "empty" }, "Counting …")); return; }
    replace(tiles,
      Object.entries(STATES).map(([state, meaning]) => h("a", { class: `tile ${state}`, title: meaning, href: `/futures?state=${state}` }, h("b", {}, count(sample.counts[state])), h("span", {}, state, state === "claimed" && snapshot.actors ? ` (${count(snapshot.actors)} actor${snapshot.actors === 1 ? "" : "s"})` : null))),
      h("div", { class: "tile" }, h("b", {}, rate(sample.finished)), h("span", {}, "done per second")),
      h("div", { class: "tile" }, h("b", {}, duration(sample.p50)), h("span", {}, "median latency")),
      h("a", { class: "tile", href: "/workers", title: SLOTS }, h("b", {}, `${sample.busy} / ${sample.slots}`), h("span", {}, `slots of ${sample.workers} worker${sample.workers === 1 ? "" : "s"}`)));
    const empty = !snapshot.counting && Object.values(sample.counts).every((number) => !number);
    plots.hidden = empty;
    if (empty !== Boolean(first.children.length)) { replace(first, empty ? beginning(snapshot) : null); words.open = empty; }
    note.textContent = snapshot.counting ? "Counting the futures of this cluster for the first time …"
      : snapshot.counted_ago > 10 ? `Every future was last counted ${duration(snapshot.counted_ago)} ago; ends and new futures are followed meanwhile.` : "";
  };
  return {
    title: "Overview",
    element: h("div", {}, h("h1", { class: "aside" }, "Overview"), tiles, words, attention, first, note, plots),
    refresh,
    shown() { for (const one of charts) { one.shown(); one.set(samples); } draw(answer); refresh(); },
    update(snapshot) {
      if (snapshot.sample && snapshot.sample.at > (samples.at(-1)?.at ?? 0)) {
        samples = [...samples.filter((one) => one.at > snapshot.sample.at - KEPT_SECONDS), snapshot.sample];
        for (const one of charts) one.set(samples);
      }
      draw(snapshot);
    },
    close() { for (const one of charts) one.close(); },
  };
}

// Of a cluster without futures there is nothing to plot.
const beginning = ({ database, cluster }) => h("section", { class: "panel" }, h("h2", {}, "No futures yet"), h("p", {}, "A Python program submits some, and they appear here:"),
  h("pre", { tabindex: 0 }, `from futures_worker import Client\n\nwith Client(${JSON.stringify(database)}, cluster=${JSON.stringify(cluster)}) as client:\n    print(client.submit(pow, 2, 100).result())`));

// What a person should look at first: what isn't as it should be with the services, then what happened to futures; the same that
// happened to many is one line.
function troubles(found) {
  if (!found.groups.length && !found.findings.length) return h("p", { class: "soft", id: "fine" }, found.examined ? "Nothing needs attention." : "No future needs attention; the services are being looked at …");
  const said = { failed: (one) => `${one.what} in ${one.name || "a function without a name"}`, stuck: (one) => `${one.name || "a function without a name"}: ${one.what}` };
  return h("section", { class: "panel attention" }, h("h2", {}, "Needs attention"),
    h("ul", {}, found.findings.map(finding), found.groups.map((one) => h("li", { class: one.kind === "failed" ? "failed" : "unclaimed" },
      h("b", { class: "times", title: one.kind === "failed" ? "futures that failed so" : "futures that wait in vain" }, count(one.count)),
      h("a", { href: `/futures/${one.id}` }, said[one.kind](one)), h("span", { class: "why" }, one.message), h("span", { class: "soft nowrap" }, ago(one.last))))),
    h("p", { class: "soft" }, [found.more && `${count(found.more)} more kinds`, found.followers && `${count(found.followers)} more failed because one of their arguments did`,
      !found.all && found.groups.length && `among the newest ${count(found.looked)} futures`].filter(Boolean).join("; ")));
}

const PAGES = { workers: "/workers", leases: "/leases", heap: "/heap", ids: "/ids", janitor: "/leases?prefix=duty/" };

// As `mainspring doctor` says it, with what to do.
function finding(one) {
  const bad = one.level === "problem";
  return h("li", { class: bad ? "failed" : "unclaimed", "data-check": one.check }, h("b", { title: one.level }, bad ? "✕" : "!"),
    PAGES[one.check] ? h("a", { href: PAGES[one.check] }, one.check) : h("span", {}, one.check),
    h("span", { class: "why" }, h("span", { class: "what" }, one.what), one.do ? ["; ", code(one.do)] : null), h("span", { class: "soft" }, one.level));
}
