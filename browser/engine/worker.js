// The engine in a thread of its own: the page stays responsive while it computes. Requests are answered one after
// the other, once their model is loaded; one that was cancelled before its turn is left out.

import * as answers from "./answers.js";
import { open } from "./models.js";

const cancelled = new Set();
let last = Promise.resolve();

addEventListener("message", ({ data }) => {
  if (data.cancel) cancelled.add(data.cancel);
  else take(data);
});

/** Download what a request needs, while others are answered; then let it wait for its turn. */
async function take(request) {
  const { model, version } = request.args.at(-1) ?? {}; // of the query, or of the body
  try {
    if (model) await (await open(model, version)).load();
  } catch (error) {
    return refuse(request, error);
  }
  last = last.then(() => answer(request));
}

async function answer(request) {
  const { id, name, args } = request;
  await new Promise((resolve) => setTimeout(resolve)); // cancellations that have come are heard
  if (cancelled.delete(id)) return;
  try {
    postMessage({ id, result: await answers[name](...args) });
  } catch (error) {
    refuse(request, error);
  }
  cancelled.delete(id);
}

function refuse({ id }, { status = 500, title = "The browser cannot compute the answer", message }) {
  postMessage({ id, problem: { status, title, detail: message } });
}
