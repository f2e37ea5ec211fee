// Time series plots in the page's colours; they follow the width of their panel.
import uPlot from "./vendor/uplot.js";
import { h } from "./dom.js";
import { clock } from "./format.js";

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const LEAST_SECONDS = 60; // a plot that just began isn't stretched over its width
const BINARY = Array.from({ length: 50 }, (_, e) => 2 ** e);
const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 10 }, (_, e) => n * 10 ** e)).sort((a, b) => a - b);

// On a logarithmic axis only powers of ten have a line and a number.
const power = (u, marks) => marks.map((mark) => (mark && Math.abs(Math.log10(mark) - Math.round(Math.log10(mark))) < 1e-9 ? mark : null));
const tens = (axis) => ({ filter: power, grid: { ...axis.grid, filter: power }, ticks: { ...axis.ticks, filter: power } });

// series: [{label, colour, value(sample), fill?, rare?}]; stacked ones are drawn on top of each other. Of a rare one no line is drawn
// where it is 0 and stays so: it would hide another.
export function chart({ title, series, format, stacked = false, log = false, whole = false, binary = false }) {
  const holder = h("div", { class: "chart", role: "img", "aria-label": title });
  const element = h("section", { class: "panel" }, h("h2", {}, title), holder);
  let plot = null;
  let samples = [];

  const columns = () => {
    const raw = series.map((one) => samples.map((sample) => one.value(sample) ?? null)).map((row, at) => (series[at].rare ? row.map((value, i) => (row[i - 1] || value || row[i + 1] ? value : null)) : row));
    if (stacked) for (let at = series.length - 2; at >= 0; at -= 1) raw[at] = raw[at].map((value, i) => (value ?? 0) + (raw[at + 1][i] ?? 0));
    return [samples.map((sample) => sample.at), ...raw];
  };
  const own = (u, at, i) => series[at - 1].value(samples[i] ?? {}) ?? null;
  const draw = () => {
    plot?.destroy();
    const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") }, font: "11px system-ui" };
    plot = new uPlot({
      width: Math.max(240, holder.clientWidth), height: 190, cursor: { y: false }, legend: { live: true },
      scales: { x: { range: (u, low, high) => [Math.min(low, high - LEAST_SECONDS), high] }, y: log ? { distr: 3 } : { range: (u, low, high) => [0, Math.max(high ?? 0, 1) * 1.05] } },
      axes: [{ ...axis, space: 80, values: (u, marks) => marks.map(clock) }, { ...axis, ...(log ? tens(axis) : {}), ...(whole ? { incrs: WHOLE } : binary ? { incrs: BINARY } : {}), size: 62, values: (u, marks) => marks.map((mark) => (mark === null ? "" : format(mark))) }],
      series: [{ label: "UTC", value: (u, at) => (at || samples.length ? clock(at || samples.at(-1).at) : "") }, ...series.map((one) => ({
        label: one.label, stroke: colour(one.colour), width: 1.5, points: { show: false },
        fill: one.fill ? `${colour(one.colour)}${stacked ? "cc" : "33"}` : undefined,
        value: (u, value, at, i) => { const v = own(u, at, i ?? samples.length - 1); return v === null || v === undefined ? "–" : format(v); },
      }))],
    }, columns(), holder);
  };
  const watcher = new ResizeObserver(() => { if (plot && holder.clientWidth) plot.setSize({ width: Math.max(240, holder.clientWidth), height: 190 }); });
  return {
    element,
    shown() { draw(); watcher.observe(holder); },
    set(all) { samples = all; plot?.setData(columns()); },
    close() { watcher.disconnect(); plot?.destroy(); plot = null; },
  };
}
