// Many files in requests of a few; a file that the service cannot read costs no other its answer.

import * as api from "./api.js";
import { ServiceError } from "./transport.js";

const BATCH = 32; // images in a request
const BATCH_BYTES = 24 * 2 ** 20; // of their files; a service takes 32 MiB unless told otherwise
const AT_ONCE = 2; // requests
const ABOUT_A_FILE = new Set([0, 408, 413, 415, 422]); // statuses; 0: it cannot be read, 408: it is sent too slowly
const ABOUT_THE_QUERY = new Set(["/problems/invalid-field", "/problems/no-decoder", "/problems/refused-model"]); // with such a status

/**
 * Classify items, each of one file or of a pair.
 *
 * @param {{files: File[], error?: string}[]} items an error: the files cannot be read
 * @param {{name: string, version: number}} model
 * @param {(item: object, outcome: {result?: object, error?: string}) => void} onOutcome for each item, in any order
 * @param {AbortSignal} signal
 */
export async function scoreAll(items, model, onOutcome, signal) {
  for (const item of items) if (item.error) onOutcome(item, { error: item.error });
  const batches = inBatches(items.filter(({ error }) => !error));
  const worker = async () => {
    for (let batch = batches.shift(); batch; batch = batches.shift()) await score(batch, model, onOutcome, signal);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** The items in lists for one request each. */
function inBatches(items) {
  const batches = [];
  let bytes = Infinity; // of the last one
  for (const item of items) {
    const more = item.files.reduce((sum, { size }) => sum + size, 0);
    if (bytes + more > BATCH_BYTES || batches.at(-1).length === BATCH) {
      batches.push([]);
      bytes = 0;
    }
    batches.at(-1).push(item);
    bytes += more;
  }
  return batches;
}

async function score(batch, model, onOutcome, signal) {
  try {
    const query = { model: model.name, version: model.version, top_k: model.manifest.objects_per_image };
    const answer = await api.classify(batch.flatMap(({ files }) => files), query, signal, { tellsSlow: false });
    batch.forEach((item, index) => onOutcome(item, { result: answer.results[index] }));
  } catch (error) {
    if (!(error instanceof ServiceError) || !ABOUT_A_FILE.has(error.status) || ABOUT_THE_QUERY.has(error.type)) throw error;
    if (batch.length === 1) return onOutcome(batch[0], { error: error.message });
    const half = Math.ceil(batch.length / 2); // the file that is to blame is in one of the halves
    await score(batch.slice(0, half), model, onOutcome, signal);
    await score(batch.slice(half), model, onOutcome, signal);
  }
}
