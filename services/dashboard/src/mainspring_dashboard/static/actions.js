// Buttons that change something, where the server says that this page may. Each asks once more before it acts.
import { act } from "./api.js";
import { h } from "./dom.js";

const ASKED_MS = 5000;
let allowed = false;

// Whether that is news.
export function allow(may) {
  const before = allowed;
  allowed = Boolean(may);
  return allowed !== before;
}

// choices: [label, body of the request]. after(): what is shown is read again.
export function buttons(path, choices, after) {
  if (!allowed || !choices.length) return null;
  const said = h("span", { class: "soft", role: "status" });
  return h("div", { class: "actions" }, choices.map(([label, body]) => {
    let timer = null;
    const calm = () => { clearTimeout(timer); timer = null; button.textContent = label; button.classList.remove("sure"); };
    const button = h("button", { type: "button", on: { click: async () => {
      if (!timer) { button.textContent = `Really ${label.toLowerCase()}?`; button.classList.add("sure"); timer = setTimeout(calm, ASKED_MS); return; }
      calm();
      button.disabled = true;
      try { said.textContent = (await act(path, body)).done ? "Done." : "Nothing to do: it changed meanwhile."; await after(); } catch (error) { said.textContent = error.message; }
      button.disabled = false;
    } } }, label);
    return button;
  }), said);
}
