// The one module through which the page asks for answers. Here they come from an engine in the browser: ONNX Runtime
// Web in a worker. What the functions take and give is what the HTTP API takes and gives.

import { showProgress } from "./banner.js";
import { ServiceError } from "./transport.js";

const engine = new Worker(new URL("../../engine/worker.js", import.meta.url), { type: "module" });
const waiting = new Map(); // by the request's number: {resolve, reject}
let count = 0;

engine.addEventListener("message", ({ data: { id, result, problem, progress } }) => {
  if (progress) return showProgress(progress);
  const request = waiting.get(id);
  waiting.delete(id);
  if (problem) request?.reject(new ServiceError(problem.status, problem));
  else request?.resolve(result);
});
engine.addEventListener("error", ({ message }) => {
  const problem = { title: "The engine of this page cannot be loaded", detail: message || "check the connection and load the page again" };
  for (const { reject } of waiting.values()) reject(new ServiceError(502, problem));
  waiting.clear();
});

export const models = () => ask("models", []);
export const versions = (name) => ask("versions", [name]);
export const classify = (files, query, signal) => ask("classify", [files, query], signal);
export const segment = (files, query, signal) => ask("segment", [files, query], signal);
export const explain = (files, query, signal) => ask("explain", [files, query], signal);
export const sweep = (body, signal) => ask("sweep", [body], signal);

function ask(name, args, signal) {
  const id = ++count;
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    waiting.set(id, { resolve, reject });
    signal?.addEventListener("abort", () => {
      if (!waiting.delete(id)) return;
      engine.postMessage({ cancel: id });
      reject(signal.reason);
    });
    engine.postMessage({ id, name, args });
  });
}
