// What ran where and when: a lane for each slot of each worker, live. Drawn on a canvas, since there may be thousands of attempts.
import { colour } from "./charts.js";
import { h, replace } from "./dom.js";
import { clock, duration, short } from "./format.js";

const HUES = [215, 150, 275, 35, 185, 320, 95, 250, 60, 200]; // of functions; red is for what failed
const MOST = 6000, WORKERS = 40, LABEL = 18, GAP = 8, FOOT = 20, FRAME_MS = 100, POLL_MS = 1000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300];

export function taskStream({ get, go, seconds, worker = "" }) {
  const canvas = h("canvas", { class: "stream", role: "img", "aria-label": "Tasks by worker and slot" });
  const legend = h("div", { class: "legend" });
  const tip = h("div", { class: "tip", hidden: true });
  const note = h("p", { class: "soft" });
  const element = h("div", { class: "stream-holder" }, canvas, tip, legend, note);
  const hues = new Map();
  let ended = new Map(), running = [], workers = [], next = 0, ahead = 0, asked = 0, asking = false, timer = null, closed = false, held = null, kept = [], boxes = [], drawn = "";
  const hue = (name) => { if (!hues.has(name)) hues.set(name, HUES[hues.size % HUES.length]); return hues.get(name); };
  const mine = (row) => !worker || row[2] === worker;

  const refresh = async () => {
    if (asking || Date.now() - asked < POLL_MS - 100) return;
    asked = Date.now();
    asking = true;
    const found = await get("timeline", { after: next || "" }).finally(() => { asking = false; });
    ahead = found.now - Date.now() / 1000;
    next = found.next;
    workers = found.workers.filter((one) => !worker || one.address === worker);
    running = found.running.filter(mine);
    for (const row of found.ended.filter(mine)) ended.set(row[0] + row[3], row);
    const since = found.now - seconds;
    ended = new Map([...ended].filter(([, row]) => row[4] > since).slice(-MOST));
  };

  // Several may be claimed at once and run one after another: an attempt is drawn from its claim or from the end of the one before
  // it in its lane, whichever is later.
  const placed = (now) => {
    const of = new Map(workers.map((one) => [one.address, { lanes: Array(one.slots).fill(0), rows: [], known: true }]));
    const lane = (row, end) => {
      if (!of.has(row[2])) of.set(row[2], { lanes: [0], rows: [], known: false });
      const { lanes, rows, known } = of.get(row[2]);
      let best = -1;
      for (let at = 0; at < lanes.length; at += 1) {
        if (lanes[at] > end) continue;
        const score = (free) => (free <= row[3] ? free : -free);
        if (best < 0 || score(lanes[at]) > score(lanes[best])) best = at;
      }
      if (!known && (best < 0 || lanes[best] > row[3]) && lanes.length < 16) { lanes.push(0); best = lanes.length - 1; }
      if (best < 0) return;
      rows.push([row, best, Math.max(row[3], lanes[best]), end]);
      lanes[best] = end;
    };
    for (const row of [...ended.values()].sort((a, b) => a[4] - b[4])) lane(row, row[4]);
    const begun = new Map(); // a worker may have claimed more than it has slots: those are in hand and don't run yet
    for (const row of running) {
      const slots = of.get(row[2])?.lanes.length ?? 1, number = begun.get(row[2]) ?? 0;
      if (number < slots) lane(row, Infinity);
      begun.set(row[2], number + 1);
    }
    return [...of].sort(([a], [b]) => (a < b ? -1 : 1)).filter(([, one]) => one.known || one.rows.some((row) => row[3] > now - seconds));
  };

  const draw = () => {
    const width = element.clientWidth;
    if (!width) return;
    const now = held ?? Date.now() / 1000 + ahead, from = now - seconds, x = (at) => ((at - from) / seconds) * width;
    if (held === null) kept = placed(now); // else news could put what the pointer rests on into another lane
    const all = kept, shown = all.slice(0, WORKERS);
    const tall = (one) => (one.lanes.length > 12 ? 8 : 15);
    const height = shown.reduce((sum, [, one]) => sum + LABEL + one.lanes.length * tall(one) + GAP, FOOT);
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches ? document.documentElement.dataset.theme !== "light" : document.documentElement.dataset.theme === "dark";
    const paint = (name) => (name === null ? colour("failed") : `hsl(${hue(name)} ${dark ? "62% 60%" : "58% 50%"})`);
    const step = STEPS.find((one) => (one / seconds) * width > 76) ?? 600;
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= now; at += step) {
      pen.fillStyle = colour("grid"); pen.fillRect(Math.round(x(at)), 0, 1, height - FOOT);
      pen.fillStyle = colour("soft"); if (x(at) > 30 && x(at) < width - 30) pen.fillText(clock(at), x(at), height - FOOT / 2 + 2);
    }
    pen.textAlign = "left";
    boxes = [];
    const counts = new Map();
    let top = 0;
    for (const [address, one] of shown) {
      const each = tall(one);
      pen.fillStyle = colour("soft"); pen.fillText(one.known ? address : `${address} (gone)`, 0, top + LABEL / 2);
      top += LABEL;
      pen.fillStyle = colour("code"); pen.fillRect(0, top, width, one.lanes.length * each);
      for (const [row, lane, begin, end] of one.rows) {
        const last = Math.min(end, now);
        if (last < from) continue;
        const failed = row[5] === "failed", left = Math.max(0, x(begin)), wide = Math.max(1, x(last) - left - (end === Infinity ? 0 : 0.5));
        const key = failed ? null : row[1];
        counts.set(key, (counts.get(key) ?? 0) + 1);
        pen.globalAlpha = end === Infinity ? 0.6 : 1;
        pen.fillStyle = paint(key); pen.fillRect(left, top + lane * each + 1, wide, each - 2);
        pen.globalAlpha = 1;
        if (wide > 46 && each > 12) {
          pen.save(); pen.beginPath(); pen.rect(left, top + lane * each, wide - 3, each); pen.clip();
          pen.fillStyle = dark ? "#0b1220" : "#fff"; pen.fillText(row[1].split(".").at(-1) || short(row[0]), left + 4, top + lane * each + each / 2 + 0.5); pen.restore();
        }
        boxes.push([left, top + lane * each, Math.max(wide, 3), each, row, begin, end]);
      }
      top += one.lanes.length * each + GAP;
    }
    const names = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12);
    const text = JSON.stringify([names.map(([name]) => name), dark]);
    if (text !== drawn) {
      drawn = text;
      replace(legend, names.map(([name]) => h("span", {}, h("i", { style: { background: paint(name) } }), name === null ? "failed" : name || "without a name")));
    }
    const total = [...counts.values()].reduce((sum, n) => sum + n, 0);
    canvas.setAttribute("aria-label", `${total} tasks on ${shown.length} workers in the last ${duration(seconds)}`);
    note.textContent = all.length > shown.length ? `The first ${shown.length} of ${all.length} workers; each worker's page has its own.` : all.length ? "" : "No worker is alive, and nothing ran lately.";
  };

  const under = (event) => {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    return boxes.findLast(([left, top, wide, tall]) => px >= left - 1 && px <= left + wide + 1 && py >= top && py < top + tall);
  };
  canvas.addEventListener("pointermove", (event) => {
    held ??= Date.now() / 1000 + ahead; // what is looked at stands still
    const found = under(event);
    tip.hidden = !found;
    canvas.style.cursor = found ? "pointer" : "";
    if (!found) return;
    const [, , , , row, begin, end] = found;
    replace(tip, h("b", {}, row[1] || "without a name"), h("span", {}, `${row[5]} · ${duration((end === Infinity ? held : end) - begin)}`), h("span", { class: "mono" }, `${clock(begin)} UTC · ${row[2]}`), h("span", { class: "mono" }, short(row[0])));
    const box = element.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - 230))}px`;
    tip.style.top = `${event.clientY - box.top + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { held = null; tip.hidden = true; });
  canvas.addEventListener("click", (event) => { const found = under(event); if (found) go(`/futures/${found[4][0]}`); });

  return {
    element,
    refresh,
    running: () => running,
    shown() {
      const frame = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : FRAME_MS;
      timer = setInterval(() => { if (!document.hidden && !closed) draw(); }, frame);
      refresh().then(draw, () => {});
    },
    close() { closed = true; clearInterval(timer); },
  };
}
