export const AWAY = "The dashboard's server doesn't answer; trying again.";
const UNKNOWN = "The dashboard's server doesn't answer: whether it was done is not known.";
const LIMIT_MS = 30_000; // the server takes less for anything: what isn't answered by then won't be, and another request may be
const NEVER = new Promise(() => {});

// What the server answers: whether that is what was asked for, its status and body. A browser's own words for a server that isn't
// there say nothing to people. left: a signal that nobody wants the answer any more; there is none then.
async function ask(path, options, otherwise, left = null) {
  const over = new AbortController(), end = () => over.abort();
  const timer = setTimeout(end, LIMIT_MS);
  left?.addEventListener("abort", end);
  try {
    const answer = await fetch(`/api/${path}`, { ...options, signal: over.signal });
    const { ok, status } = answer, body = parsed(await answer.text());
    if (ok && body === null) throw new TypeError("it isn't whole");
    return { ok, status, body: body ?? { error: `the server answered ${status}` } };
  } catch {
    throw new Error(otherwise);
  } finally {
    clearTimeout(timer);
    left?.removeEventListener("abort", end);
  }
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return null; }
}

// What the page asks the server for. An answer that isn't 200 becomes an Error with the server's words.
export async function get(path, parameters = {}, left = null) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  if (left?.aborted) return NEVER;
  const { ok, status, body } = await ask(`${path}${query.size ? `?${query}` : ""}`, { headers: { accept: "application/json" } }, AWAY, left)
    .catch((error) => { if (left?.aborted) return NEVER; throw error; });
  if (!ok) throw Object.assign(new Error(body.error), { status });
  return body;
}

// Changes something; the server takes it from this page alone, by this header.
export async function act(path, body) {
  const { ok, body: found } = await ask(path, { method: "POST", headers: { "content-type": "application/json", "x-mainspring-action": "1" }, body: JSON.stringify(body) }, UNKNOWN);
  if (!ok) throw new Error(found.error);
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
