export const AWAY = "The dashboard's server doesn't answer; trying again.";

// A browser's own words for a server that isn't there say nothing to people.
const ask = (path, options) => fetch(`/api/${path}`, options).catch(() => { throw new Error(AWAY); });

// What the page asks the server for. An answer that isn't 200 becomes an Error with the server's words.
export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const answer = await ask(`${path}${query.size ? `?${query}` : ""}`, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(body.error), { status: answer.status });
  return body;
}

// Changes something; the server takes it from this page alone, by this header.
export async function act(path, body) {
  const answer = await ask(path, { method: "POST", headers: { "content-type": "application/json", "x-mainspring-action": "1" }, body: JSON.stringify(body) });
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

const AGAIN_MS = 2000;

// One sample a second. The browser reconnects by itself where the connection broke; an answer that is none (a proxy's 502, too many
// pages) ends an EventSource for good, so another one is begun.
export function stream(onSample, onState) {
  const source = new EventSource("/api/stream");
  source.onmessage = (event) => { onState(true); onSample(JSON.parse(event.data)); };
  source.onerror = () => {
    onState(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => stream(onSample, onState), AGAIN_MS);
  };
}
