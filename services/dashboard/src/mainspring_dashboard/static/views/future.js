// One future: its state and why, how long each phase took, its failure, the graph around it.
import { buttons } from "../actions.js";
import { badge, code, h, list, replace } from "../dom.js";
import { ago, count, duration, short, size, time } from "../format.js";
import { lineageGraph } from "../lineage.js";
import { program } from "./program.js";

export default async function future({ parameters: [id], get }) {
  const body = h("div");
  let last = "";
  const refresh = async () => {
    const [info, graph] = await Promise.all([get(`futures/${id}`), get(`futures/${id}/lineage`)]);
    const text = JSON.stringify([info, graph]);
    if (text === last) return; // nothing changed: what the reader selected or unfolded stays
    last = text;
    draw(info, graph);
  };
  const link = (one) => h("a", { href: `/futures/${one}`, class: "mono" }, short(one), " ");
  const draw = (info, graph) => replace(body,
    h("h1", {}, info.name || "Future", " ", h("span", { class: "mono soft" }, info.id)),
    h("section", { class: "panel" }, h("h2", {}, badge(info.state)), h("p", { class: "reason" }, info.reason), info.do ? h("p", { class: "do" }, code(info.do)) : null, phases(info),
      buttons(`futures/${id}`, info.state === "failed" ? [["Retry", { action: "retry" }]] : ["waiting", "unclaimed", "claimed"].includes(info.state) ? [["Cancel", { action: "cancel" }]] : [], refresh)),
    info.failure ? h("section", { class: "panel" }, h("h2", {}, info.failure.final ? "Failure" : "The last attempt failed"),
      h("p", {}, h("b", {}, info.failure.reason), ` ${info.failure.message}`),
      info.failure.chain?.length ? h("p", {}, "through ", info.failure.chain.map(link)) : null,
      info.failure.traceback ? h("pre", { tabindex: 0 }, info.failure.traceback) : null) : null,
    h("div", { class: "grid" },
      h("section", { class: "panel" }, h("h2", {}, "Attempts and result"), list([
        ["attempts", info.state === "deleted" ? null : tries(info)], ["retries", info.charged === undefined ? null : `${Math.max(0, info.charged - 1)} of the ${info.max_retries} that max_retries allows`],
        ["lost with workers", info.losses || null], ["out of memory", info.out_of_memory || null], ["computed again, since the result was lost", info.epoch || null],
        ["worker", info.worker ? h("a", { class: "mono", href: `/workers/${info.worker}` }, info.worker) : null], ["result", info.result_bytes === null || info.result_bytes === undefined ? null : size(info.result_bytes)],
        ["copies", info.copies?.join(", ")], ["may be computed again", info.allow_reconstruction === undefined ? null : info.allow_reconstruction ? "yes" : "no"],
      ])),
      h("section", { class: "panel" }, h("h2", {}, "What was asked for"), list([
        ["submitted", info.submitted ? `${time(info.submitted)} (${ago(info.submitted)})` : null], ["session", info.session ? h("a", { class: "mono", href: `/futures?session=${info.session}` }, info.session) : null],
        ["dataset", info.dataset ? h("a", { class: "mono", href: `/futures?dataset=${info.dataset}` }, info.dataset) : null],
        ["needs", info.requirements ? `cpu ${info.requirements.cpu}, ram ${size(info.requirements.ram)}, gpu ${info.requirements.gpu}${Object.entries(info.requirements.resources ?? {}).map(([name, n]) => `, ${name} ${n}`).join("")}` : null],
        ["priority", info.priority || null], ["code", info.code_bytes === undefined ? null : info.code_bytes === null ? "stored once, shared" : size(info.code_bytes)], ["arguments", info.args_bytes === undefined ? null : size(info.args_bytes)],
        ["waits on", info.waiting_on?.length ? [count(info.waiting_on.length), ": ", info.waiting_on.slice(0, 20).map(link)] : null],
        ...Object.entries(info.options ?? {}).map(([name, value]) => [name.replaceAll("_", " "), String(value)]),
      ]))),
    program(info.program),
    info.output?.length ? h("section", { class: "panel" }, h("h2", {}, "Output"), info.output.map((one) => [
      info.output.length > 1 || one.dropped ? h("p", { class: "soft" }, `attempt ${one.attempt}${one.dropped ? `: the first ${size(one.dropped)} are no longer kept` : ""}`) : null,
      h("pre", { tabindex: 0, class: "output" }, one.text)])) : null,
    graph.nodes.length > 1 ? h("section", { class: "panel" }, h("h2", {}, "Lineage"), lineageGraph(graph, info.id),
      graph.cut ? h("p", { class: "soft" }, "The graph is larger: only what is nearest is drawn.") : null) : null);
  await refresh();
  return { title: `Future ${short(id)}`, element: body, refresh };
}

// An attempt that is lost with its worker, runs out of memory or is given back unbegun is no retry.
const tries = ({ attempts, charged = attempts }) => (attempts > charged ? `${attempts}, ${attempts - charged} of them not charged to max_retries` : attempts);

// Waiting is for its arguments; queued is what could begin and found no free slot.
function phases(info) {
  if (!info.submitted) return null;
  const end = info.ended ?? Date.now() / 1000, start = info.started ?? null;
  const ready = info.state === "waiting" ? end : Math.min(Math.max(info.ready ?? info.submitted, info.submitted), start ?? end);
  const queued = info.attempts > 1 && start ? "queued, and in earlier attempts," : "queued";
  const parts = [["waiting", "waited", ready - info.submitted], ["unclaimed", queued, (start ?? end) - ready], ["claimed", info.ended ? "ran" : "running", start ? end - start : 0]].filter(([tone, , seconds]) => (tone === "claimed" ? start : seconds > 0));
  return h("div", {}, h("div", { class: "phases" }, parts.map(([tone, , seconds]) => h("i", { class: tone, style: { "flex-grow": String(Math.max(seconds, 1e-6)) } }))),
    h("p", { class: "soft" }, parts.map(([, name, seconds]) => `${name} ${duration(Math.max(0, seconds))}`).join(" · ")));
}
