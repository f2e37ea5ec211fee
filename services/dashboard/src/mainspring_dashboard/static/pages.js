// Where in a list that is numbered a page is, and the way to the pages beside it.
import { h } from "./dom.js";
import { count } from "./format.js";

// skip, shown: rows before and on this page. matches: in all, where that is known. following: skip of the next page, or null.
export function pages({ skip, shown, matches = null, following, size, link }) {
  if (!skip && following === null) return null;
  return h("p", { class: "pages" }, skip ? h("a", { href: link(Math.max(0, skip - size)), rel: "prev" }, "← Before") : null,
    h("span", { class: "soft" }, `${count(skip + 1)} to ${count(skip + shown)}${matches === null ? "" : ` of ${count(matches)}`}`),
    following === null ? null : h("a", { href: link(following), rel: "next" }, "Further →"));
}
