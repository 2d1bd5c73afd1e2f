// The one module through which the page asks for answers. Another engine with the same functions can take its
// place; they give what the HTTP API gives.

import { request } from "./transport.js";

/** The models: [{name, default, versions: [{version, state}]}]. */
export async function models() {
  return (await request("models")).models;
}

/** The versions of a model with their manifests, newest first. */
export async function versions(name) {
  return (await request(`models/${encodeURIComponent(name)}`)).versions;
}

/**
 * The answer of /classify.
 *
 * @param {Blob[]} files of images; of a stereo model pairs, the left view first
 * @param {{model: string, version?: number, top_k?: number, model_input?: boolean, reconstruction?: boolean}} query
 * @param {AbortSignal} [signal]
 * @param {{tellsSlow?: boolean}} [options] whether the page says that it waits; many files take their time
 */
export function classify(files, query, signal, { tellsSlow } = {}) {
  return request(`classify?${asQuery(query)}`, { method: "POST", body: form("images", files), signal, tellsSlow });
}

/** The answer of /segment: objects that lie over one another, taken apart. */
export function segment(files, query, signal) {
  return request(`segment?${asQuery(query)}`, { method: "POST", body: form("images", files), signal });
}

/** The answer of /explain: how routing arrives at its answer, iteration by iteration. */
export function explain(files, query, signal) {
  return request(`explain?${asQuery(query)}`, { method: "POST", body: form("images", files), signal });
}

/**
 * The pictures of a sweep as one PNG: a row for each dimension, a column for each step.
 *
 * @param {{model: string, version?: number, pose: number[], label: string, sweep?: object}} body of /reconstruct
 * @param {AbortSignal} [signal]
 * @returns {Promise<Blob>}
 */
export async function sweep(body, signal) {
  const headers = { "Content-Type": "application/json", Accept: "image/png" };
  const options = { method: "POST", body: JSON.stringify(body), headers, signal };
  return request("reconstruct", options, "blob");
}

function form(field, files) {
  const made = new FormData();
  for (const file of files) {
    // A file goes in as it is: given a name it is copied, and the copy of a file that is gone looks empty.
    if (file instanceof File) made.append(field, file);
    else made.append(field, file, "drawing.png");
  }
  return made;
}

function asQuery(query) {
  return new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== null));
}
