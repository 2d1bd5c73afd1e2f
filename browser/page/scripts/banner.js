// The line that says where answers are computed, and how much of a model has come.

import { byId } from "./dom.js";

const MEGABYTE = 1e6;

/** Say how far the download of a model is: {name, loaded, total}, in bytes. */
export function showProgress({ name, loaded, total }) {
  const [done, all] = [loaded, total].map((bytes) => (bytes / MEGABYTE).toFixed(0));
  byId("banner-progress").textContent = loaded < total ? `Loading ${name}: ${done} of ${all} MB` : "";
}
