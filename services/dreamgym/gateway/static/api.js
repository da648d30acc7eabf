// Calls of the REST API and the event stream. The key is a header, so the stream is read by fetch, not by EventSource.

const KEY = "dreamgym.key";
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? `The gateway answered ${status}.`);
    this.status = status;
    this.remedy = body.remedy ?? "";
  }
}

export async function call(path, { method = "GET", signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, signal, headers: { "X-API-Key": key.get() } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The gateway does not answer.", remedy: "Is it running? The page tries again." });
  }
  const body = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, body);
  return body;
}

// Follows a job until it ends or `signal` aborts; reconnects where it left off. `onLink(live)` tells of the connection.
export async function followJob(id, { onEvent, onLink, signal }) {
  let last = "", wait = 500;
  while (!signal.aborted) {
    try {
      const headers = { "X-API-Key": key.get(), Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
      const answer = await fetch(`/v1/jobs/${encodeURIComponent(id)}/events`, { headers, signal });
      if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
      onLink(true);
      wait = 500;
      for await (const event of parsed(answer.body)) {
        if (event.id) last = event.id;
        onEvent(event.event, event.data);
        if (event.event === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && [401, 403, 404].includes(error.status)) throw error;
    }
    onLink(false);
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, 10000);
  }
}

async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      if (event.data) yield { ...event, data: JSON.parse(event.data) };
    }
  }
}
