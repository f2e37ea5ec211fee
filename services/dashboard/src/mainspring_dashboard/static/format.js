// Numbers as people read them.
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en"));
export const rate = (n) => (n >= 100 ? count(n) : n.toFixed(n >= 10 ? 1 : 2).replace(/\.?0+$/, "") || "0");

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let at = 0;
  while (Math.abs(bytes) >= 1024 && at < SIZES.length - 1) { bytes /= 1024; at += 1; }
  return `${at && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${SIZES[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  const s = Math.abs(seconds), sign = seconds < 0 ? "−" : "";
  if (s < 1e-3) return `${sign}${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${sign}${s < 0.01 ? (s * 1e3).toFixed(1) : Math.round(s * 1e3)} ms`;
  if (s < 120) return `${sign}${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 7200) return `${sign}${Math.round(s / 60)} min`;
  if (s < 172800) return `${sign}${Math.round(s / 3600)} h`;
  return `${sign}${Math.round(s / 86400)} d`;
}

export const ago = (at) => (at ? `${duration(Math.max(0, Date.now() / 1000 - at))} ago` : "–");
// What a list was made from, where it is of futures that the server keeps in memory.
export const lookedThrough = (found) => [found.all ? `all ${count(found.looked)} futures` : `the newest ${count(found.looked)} futures`, found.counting ? ", which are still being counted" : ""].join("");
// Times are UTC everywhere on the page.
export const clock = (at) => new Date(at * 1000).toISOString().slice(11, 19);
export const time = (at) => (at ? new Date(at * 1000).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC") : "–");
// The beginning of an id, which every command takes for it: its time and the client's own sequence.
export const short = (id) => id.slice(0, 18);
