// What the page asks the server for. An answer that isn't 200 becomes an Error with the server's words.
export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const answer = await fetch(`/api/${path}${query.size ? `?${query}` : ""}`, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(body.error), { status: answer.status });
  return body;
}

// One sample a second; the browser reconnects by itself.
export function stream(onSample, onState) {
  const source = new EventSource("/api/stream");
  source.onmessage = (event) => { onState(true); onSample(JSON.parse(event.data)); };
  source.onerror = () => onState(false);
  return source;
}
