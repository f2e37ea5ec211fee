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

export function table(columns, rows, empty) {
  if (!rows.length) return h("div", { class: "empty" }, empty);
  const made = h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, show, kind]) => h("td", { class: kind }, show(row))))))));
  // What may have to be scrolled must be reached by the keyboard too.
  if (!made.querySelector("a, button")) for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Table"]]) made.setAttribute(name, value);
  return made;
}

// What the data model's own words mean, shown where the pointer rests on one.
export const STATES = {
  waiting: "for its arguments, or a pause after a failure", unclaimed: "in the pool, until a worker takes it", claimed: "a worker has it",
  realized: "done: its result is stored", failed: "for good",
};
export const badge = (state) => h("span", { class: `badge ${state}`, title: STATES[state] }, state);
export const list = (pairs) => h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length))
  .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
