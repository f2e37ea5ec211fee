// One task of the heap: why it isn't running, what it printed last, and where it may be acted on.
import { buttons } from "../actions.js";
import { h, list, replace } from "../dom.js";
import { ago, count, duration, time } from "../format.js";

export default async function task({ parameters: [id], get }) {
  const path = `heap/tasks/${id}`;
  const body = h("div"), start = h("span");
  let last = "";
  const draw = (found) => replace(body,
    h("section", { class: "panel" }, h("h2", {}, found.dead ? "A dead letter" : found.paused ? "Paused" : found.state),
      found.reasons.length ? h("ul", {}, found.reasons.map((one) => h("li", {}, one))) : h("p", {}, found.state === "running" ? "It runs." : "Nothing holds it back."),
      buttons(path, [found.paused ? ["Resume", { action: "resume" }] : ["Pause", { action: "pause" }], ["Run now", { action: "run" }]], refresh)),
    h("section", { class: "panel" }, h("h2", {}, "Facts"), list([
      ["partition", found.partition], ["id", h("span", { class: "mono" }, found.id)], ["run", count(found.gen)], ["attempt", `${found.attempt} of ${found.max_attempts}`],
      ["cadence", duration(found.cadence)], ["may start", found.not_before === null ? null : start],
      ["started", found.started ? `${time(found.started)} (${ago(found.started)})` : null], ["records", `${count(found.unread)} unread of ${count(found.log_end)}`],
      ["runs asked for", found.pending_runs || null], ["overlap", found.overlap], ["after a pause", `catch up ${found.catch_up}`], ["dead letters", found.dead_letters.join(", ")], ["last error", found.last_error]])),
    found.output ? h("section", { class: "panel" }, h("h2", {}, `Output of run ${found.output_gen}`), h("pre", { tabindex: 0, class: "output" }, found.output)) : null);
  const title = h("h1", {});
  const refresh = async () => {
    const found = await get(path);
    title.textContent = found.name || "Task";
    start.textContent = found.not_before > 0 ? `in ${duration(found.not_before)}` : "now";
    const text = JSON.stringify({ ...found, due_in: 0, not_before: found.not_before === null }); // a question that was asked stays
    if (text !== last) { last = text; draw(found); }
  };
  await refresh();
  return { title: `Task ${title.textContent}`, element: h("div", {}, title, body), refresh };
}
