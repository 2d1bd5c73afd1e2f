// The engine in a thread of its own: the page stays responsive while it computes. Requests are answered one after
// the other; one that was cancelled before its turn is left out.

import * as answers from "./answers.js";
import { onProgress } from "./models.js";

const cancelled = new Set();
let last = Promise.resolve();

onProgress((progress) => postMessage({ progress }));

addEventListener("message", ({ data }) => {
  if (data.cancel) return cancelled.add(data.cancel);
  last = last.then(() => answer(data));
});

async function answer({ id, name, args }) {
  await new Promise((resolve) => setTimeout(resolve)); // cancellations that have come are heard
  if (cancelled.delete(id)) return;
  try {
    postMessage({ id, result: await answers[name](...args) });
  } catch ({ status = 500, title = "The browser cannot compute the answer", message }) {
    postMessage({ id, problem: { status, title, detail: message } });
  }
  cancelled.delete(id);
}
