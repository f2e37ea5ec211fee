// One worker: what it offers and really uses, over time, its slots' tasks, what it runs and ended last.
import { chart } from "../charts.js";
import { h, list, replace } from "../dom.js";
import { ago, count, duration, size, time } from "../format.js";
import { taskStream } from "../stream.js";
import { attempts } from "./attempts.js";
import { meters } from "./workers.js";

const cores = (value) => String(Math.round(value * 100) / 100);

export default async function worker({ parameters: [address], get, go }) {
  const path = `workers/${encodeURIComponent(address)}`;
  const stream = taskStream({ get, go, seconds: 120, worker: address });
  const charts = [
    chart({ title: "Processors in use", format: cores, series: [{ label: "used", colour: "claimed", fill: true, value: (s) => s.cpu }] }),
    chart({ title: "Memory", format: size, binary: true, series: [{ label: "used", colour: "waiting", fill: true, value: (s) => s.memory }] }),
    chart({ title: "Slots", whole: true, format: count, series: [{ label: "busy", colour: "realized", fill: true, value: (s) => s.busy }, { label: "all", colour: "soft", value: (s) => s.slots }] }),
  ];
  const facts = h("section", { class: "panel" }), running = h("div"), ended = h("div");
  const draw = (found) => {
    const one = found.worker;
    replace(facts, one ? [list([
      ["process", h("span", { class: "mono" }, `${one.host} pid ${one.pid}`)], ["started", `${time(one.started)} (${ago(one.started)})`], ["last sign of life", ago(one.beat)],
      ["in hand", `${count(one.claims)} claimed, ${count(one.assignments)} assigned`]]), meters(one)] : h("p", {}, "It is gone. What is shown is from before."));
    replace(running, attempts(found.running, "It runs nothing.", false));
    replace(ended, attempts(found.ended, "Nothing ended here lately.", false));
    for (const each of charts) each.set(found.history);
  };
  let last = await get(path);
  const refresh = async () => { last = await get(path); draw(last); await stream.refresh(); };
  draw(last);
  return {
    title: `Worker ${address}`,
    element: h("div", {}, h("h1", {}, "Worker ", h("span", { class: "mono soft" }, address)), facts,
      h("section", { class: "panel" }, h("h2", {}, "Tasks of the last two minutes"), stream.element),
      h("div", { class: "grid three" }, charts.map((each) => each.element)),
      h("section", { class: "panel" }, h("h2", {}, "Running now"), running, h("p", { class: "soft" }, "A future's page has what it printed.")),
      h("section", { class: "panel" }, h("h2", {}, "Ended last"), ended)),
    refresh,
    shown() { stream.shown(); for (const each of charts) { each.shown(); each.set(last.history); } },
    close() { stream.close(); for (const each of charts) each.close(); },
  };
}
