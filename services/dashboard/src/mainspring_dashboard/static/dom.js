// Elements made from data. Text is always set as text: names and messages are other people's words, never markup.
const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "text", "path", "title"]);

export function h(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "style") for (const [property, one] of Object.entries(value)) element.style.setProperty(property, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const replace = (element, ...children) => element.replaceChildren(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));

// columns: [title, show(row), class, sorted by]. sorting: {by, descending, link(by, descending)}, where the rows can be sorted.
export function table(columns, rows, empty, sorting = null) {
  if (!rows.length) return h("div", { class: "empty" }, empty);
  const made = h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([title, , kind, by]) => heading(title, kind, by, sorting)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, show, kind]) => h("td", { class: kind }, show(row))))))));
  // What may have to be scrolled must be reached by the keyboard too.
  if (!made.querySelector("a, button")) for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Table"]]) made.setAttribute(name, value);
  return made;
}

// Numbers begin with the greatest, words with the first; who chooses a column again turns it round.
function heading(title, kind = "", by = null, sorting = null) {
  if (!by || !sorting) return h("th", { class: kind, scope: "col" }, title);
  const here = sorting.by === by, descending = here ? !sorting.descending : kind.includes("num") || by === "submitted";
  return h("th", { class: kind, scope: "col", "aria-sort": here ? (sorting.descending ? "descending" : "ascending") : null },
    h("a", { class: "sort", href: sorting.link(by, descending), title: `Sort by ${title.toLowerCase()}` }, title, here ? h("span", { "aria-hidden": "true" }, sorting.descending ? " ↓" : " ↑") : null));
}

// What the data model's own words mean, shown where the pointer rests on one.
export const STATES = {
  waiting: "for its arguments, or a pause after a failure", unclaimed: "in the pool, until a worker takes it", claimed: "a worker has it",
  realized: "done: its result is stored", failed: "for good",
};
export const code = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part)); // a command in backquotes is one
export const badge = (state) => h("span", { class: `badge ${state}`, title: STATES[state] }, state);
export const list = (pairs) => h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length))
  .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
