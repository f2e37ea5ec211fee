// The graph around a future, drawn by levels from left (what it was made from) to right (what waits for it).
import { h } from "./dom.js";
import { count, short } from "./format.js";

const WIDTH = 168, HEIGHT = 44, GAP_X = 64, GAP_Y = 14;

export function lineageGraph(graph, self) {
  const levels = new Map();
  for (const node of graph.nodes) levels.set(node.level, [...(levels.get(node.level) ?? []), node]);
  const order = [...levels.keys()].sort((a, b) => a - b);
  const tallest = Math.max(...order.map((level) => levels.get(level).length));
  const places = new Map();
  order.forEach((level, column) => {
    const nodes = levels.get(level);
    const top = ((tallest - nodes.length) * (HEIGHT + GAP_Y)) / 2;
    nodes.forEach((node, row) => places.set(node.id, [column * (WIDTH + GAP_X) + 3, top + row * (HEIGHT + GAP_Y) + 3]));
  });
  const width = order.length * (WIDTH + GAP_X) - GAP_X + 10, height = tallest * (HEIGHT + GAP_Y) - GAP_Y + 10;
  const edges = graph.edges.map(([up, down]) => {
    const [x1, y1] = places.get(up), [x2, y2] = places.get(down);
    const from = [x1 + WIDTH, y1 + HEIGHT / 2], to = [x2, y2 + HEIGHT / 2], bend = Math.max(24, (to[0] - from[0]) / 2);
    return h("path", { d: `M${from} C${from[0] + bend},${from[1]} ${to[0] - bend},${to[1]} ${to}` });
  });
  const nodes = graph.nodes.map((node) => {
    const [x, y] = places.get(node.id);
    const name = node.name || short(node.id);
    const many = node.count > 1; // alike in function and state, folded into one
    const box = h("g", { class: `node ${node.state}${node.id === self ? " self" : ""}${many ? " many" : ""}`, transform: `translate(${x},${y})` },
      h("title", {}, many ? `${node.count} futures of ${node.name || "functions without a name"}, ${node.state}` : `${node.name} ${node.id} ${node.state}`),
      many ? h("rect", { class: "behind", x: 5, y: 5, width: WIDTH, height: HEIGHT, rx: 8 }) : null, h("rect", { width: WIDTH, height: HEIGHT, rx: 8 }),
      h("text", { x: 11, y: 19 }, name.length > 22 ? `${name.slice(0, 21)}…` : name), h("text", { x: 11, y: 35, class: "soft" }, many ? `${count(node.count)}${node.more ? " or more" : ""} ${node.state}` : node.state));
    return link(many && node.name ? `/futures?${new URLSearchParams({ q: node.name, state: node.state })}` : `/futures/${node.id}`, box);
  });
  const svg = h("svg", { class: "lineage", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Lineage of ${graph.nodes.reduce((sum, node) => sum + (node.count ?? 1), 0)} futures`, style: { "max-width": `${width}px` } }, edges, nodes);
  return h("div", { class: "scroll" }, svg);
}

function link(address, box) {
  const anchor = document.createElementNS("http://www.w3.org/2000/svg", "a");
  anchor.setAttribute("href", address);
  anchor.append(box);
  return anchor;
}
