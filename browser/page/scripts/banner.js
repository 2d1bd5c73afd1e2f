// The line that says where answers are computed, and how much of the models that are downloaded has come.

import { byId } from "./dom.js";

const MEGABYTE = 1e6;

const coming = new Map(); // what is said of each model

/** Say how far the download of a model is: {name, loaded, total}, in bytes. */
export function showProgress({ name, loaded, total }) {
  const [done, all] = [loaded, total].map((bytes) => (bytes / MEGABYTE).toFixed(0));
  if (loaded < total) coming.set(name, `Loading ${name}: ${done} of ${all} MB`);
  else coming.delete(name);
  byId("banner-progress").textContent = [...coming.values()].join(", ");
}
