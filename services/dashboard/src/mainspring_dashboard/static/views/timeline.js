// The tasks of the last minutes by worker and slot, and those that run now.
import { h, replace } from "../dom.js";
import { attempts } from "./attempts.js";
import { taskStream } from "../stream.js";

const WINDOWS = [[30, "30 s"], [120, "2 min"], [600, "10 min"]];
const SHOWN = 50;

export default async function timeline({ query, get, go }) {
  const seconds = WINDOWS.find(([one]) => String(one) === query.get("seconds"))?.[0] ?? 120;
  const stream = taskStream({ get, go, seconds });
  const body = h("div");
  const refresh = async () => {
    await stream.refresh();
    const running = stream.running();
    replace(body, attempts(running.slice(0, SHOWN), "Nothing runs."), running.length > SHOWN ? h("p", { class: "soft" }, `The ${SHOWN} that began first, of ${running.length}.`) : null);
  };
  await refresh();
  const timer = setInterval(() => { if (!document.hidden) stream.refresh().catch(() => {}); }, 1000);
  return {
    title: "Timeline",
    element: h("div", {}, h("h1", {}, "Timeline"),
      h("div", { class: "filters" }, WINDOWS.map(([one, name]) => h("a", { class: "chip", href: `/timeline?seconds=${one}`, "aria-current": one === seconds ? "true" : null }, name))),
      h("section", { class: "panel" }, stream.element),
      h("section", { class: "panel" }, h("h2", {}, "Running now"), body)),
    refresh,
    shown: stream.shown,
    close: () => { clearInterval(timer); stream.close(); },
  };
}
