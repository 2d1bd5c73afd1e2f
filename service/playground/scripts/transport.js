// Requests to the service: the key, patience with a busy service, and a connection that comes back.

const KEY = "capsnet-api-key"; // in sessionStorage: for this tab only
const LOST_WAIT_MS = 1000;
const SLOW_MS = 1500; // until the page says that it waits
const BUSY_SAID_AFTER = 3; // tries
const PROBLEMS = "/problems/"; // the `type` of each problem of the service begins with it
const CALM_MS = 100;

/** An error of the service, in its own words (RFC 9457). */
export class ServiceError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The service answered ${status}`);
    this.name = "ServiceError";
    this.status = status;
    this.type = problem.type || "about:blank";
    this.title = problem.title || "";
  }
}

/** What the page says about the connection: events "lost", "busy", "slow", "well" and "key" (with `refused`). */
export const connection = new EventTarget();

let presentKey = inSession((storage) => storage.getItem(KEY));
let awaitedKey = null;
let open = 0; // requests that have not ended

/** Whether requests bring an API key. */
export const hasKey = () => presentKey !== null;

/** Whether requests wait for a key. */
export const awaitsKey = () => awaitedKey !== null;

/** Use this key from now on; requests that waited for one go on. */
export function useKey(key) {
  presentKey = key;
  inSession((storage) => storage.setItem(KEY, key));
  awaitedKey?.resolve();
  awaitedKey = null;
}

/**
 * The body of the answer to a request; waits while the service is busy or away, and for a key if it wants one.
 *
 * @param {string} path relative to the page, such as "classify?top_k=2"
 * @param {RequestInit & {tellsSlow?: boolean}} options of fetch; a signal ends the waiting; whether the page says that it waits
 * @param {"json" | "blob"} kind of the body
 * @throws {ServiceError} the service refuses the request, something else answers, or (status 0) a file cannot be read
 */
export async function request(path, options = {}, kind = "json") {
  open++;
  try {
    return await bodyOf(path, options, kind);
  } finally {
    open--;
    // Nobody waits any more, unless another question takes the place of this one.
    if (options.signal?.aborted) setTimeout(() => open || say("well"), CALM_MS);
  }
}

async function bodyOf(path, options, kind) {
  for (let tries = 1; ; tries++) {
    const key = presentKey;
    const answer = await send(path, options, key, kind);
    if (answer === null) {
      say("lost");
      await pause(LOST_WAIT_MS, options.signal);
    } else if (answer.status === 401) await keyAfter(key, options);
    else if (answer.status === 503 || answer.status === 429) {
      const seconds = Number(answer.headers.get("Retry-After")) || 1;
      if (tries >= BUSY_SAID_AFTER || seconds > 1) say("busy");
      await pause(1000 * seconds, options.signal);
    } else {
      say("well");
      if (answer.ok) return answer.body;
      throw new ServiceError(answer.status, answer.body);
    }
  }
}

/** The answer of the service with its body, read; null if there is none, or only a part of it. */
async function send(path, { tellsSlow = true, ...options }, key, kind) {
  const headers = { ...options.headers, ...(key ? { "X-API-Key": key } : {}) };
  const slow = setTimeout(() => tellsSlow && say("slow"), SLOW_MS);
  try {
    const answer = await read(await fetch(path, { ...options, headers }), kind);
    return isGatewayError(answer) ? null : answer;
  } catch (error) {
    if (options.signal?.aborted || error instanceof ServiceError) throw error;
    await checkFiles(options.body);
    return null;
  } finally {
    clearTimeout(slow);
  }
}

/** Another key than the refused one: the present key if it is newer, else one to be typed. */
function keyAfter(refusedKey, options) {
  const key = presentKey;
  if (key !== null && key !== refusedKey) return;
  presentKey = null;
  inSession((storage) => storage.removeItem(KEY));
  if (!awaitedKey) {
    awaitedKey = {};
    // Not Promise.withResolvers: Safari has it from 17.4 on, Firefox from 121, Chrome from 119.
    awaitedKey.promise = new Promise((resolve) => (awaitedKey.resolve = resolve));
    connection.dispatchEvent(new CustomEvent("key", { detail: { refused: key !== null } }));
  }
  return Promise.race([awaitedKey.promise, aborted(options.signal)]);
}

/** What `use` gives of the tab's storage; null if the browser blocks it: the key is then kept until the page is left. */
function inSession(use) {
  try {
    return use(sessionStorage);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return null;
  }
}

function say(state) {
  connection.dispatchEvent(new CustomEvent(state));
}

async function read(answer, kind) {
  const { ok, status, headers } = answer;
  if (!ok) return { ok, status, headers, body: await answer.json().catch(() => ({})) };
  try {
    return { ok, status, headers, body: await answer[kind]() };
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new ServiceError(status, { title: "The answer is not the service's", detail: error.message }); // but a proxy's, maybe
  }
}

/** Whether a proxy says that it does not reach the service; a 504 of the service itself is a problem of its own. */
function isGatewayError({ status, body }) {
  return status === 502 || (status === 504 && !String(body?.type).startsWith(PROBLEMS));
}

/** Throws if a file of a form cannot be read any more: nothing can be sent then, which looks like a lost connection. */
async function checkFiles(body) {
  for (const file of body instanceof FormData ? body.values() : [])
    await file.slice(0, 1).arrayBuffer().catch(() => {
      throw new ServiceError(0, { title: "A file cannot be read", detail: `${file.name} has changed or is gone: open it again` });
    });
}

function pause(ms, signal) {
  return Promise.race([new Promise((resolve) => setTimeout(resolve, ms)), aborted(signal)]);
}

function aborted(signal) {
  return new Promise((_, reject) => {
    if (signal?.aborted) reject(signal.reason);
    signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
