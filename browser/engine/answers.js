// The answers of the API that the page asks for, computed here. Parameters and answers are the API's; of the fields
// of an answer those are there that the page reads.

import { explanation } from "./explanation.js";
import { models, open } from "./models.js";
import { readPicture } from "./pictures.js";
import { toBase64Png, toPng } from "./png.js";
import { isBlank, isConfident, prediction, ranked } from "./predictions.js";
import { viewsToInput } from "./preprocess.js";
import { Problem } from "./problem.js";

const BATCH = 8; // inputs of a run: the votes of more take much memory, and are hardly faster
const DELTA_SCALE = 1e12; // deltas have 12 decimals

export { models }; // GET /models

/** The versions of GET /models/{name}. */
export async function versions(name) {
  return (await models()).find((model) => model.name === name).versions;
}

/** POST /classify. */
export async function classify(files, { model: name, version, top_k: count, model_input: showsInput, reconstruction }) {
  const model = await open(name, version);
  const { manifest } = model;
  const inputs = await decoded(files, manifest);
  const results = [];
  for (const { filename, pixels, probabilities, poses } of await encoded(model, inputs)) {
    const result = { filename, ...prediction(pixels, probabilities, poses, manifest, count) };
    const [best] = ranked(probabilities);
    if (reconstruction) result.reconstruction = await toBase64Png((await model.decode([poses[best]], [best]))[0], manifest.preprocessing);
    if (showsInput) result.model_input = await toBase64Png(pixels, manifest.preprocessing);
    results.push(result);
  }
  return { ...model.heading, results };
}

/** POST /segment. */
export async function segment(files, { model: name, version }) {
  const model = await open(name, version);
  const { manifest } = model;
  const results = [];
  for (const { filename, pixels, probabilities, poses } of await encoded(model, await decoded(files, manifest))) {
    const blank = isBlank(pixels, manifest.preprocessing.channels);
    const found = ranked(probabilities).slice(0, Math.max(2, manifest.objects_per_image));
    const pictures = await model.decode(found.map((j) => poses[j]), found);
    const objects = found.map(async (j, place) => ({
      label: manifest.class_names[j],
      confident: isConfident(probabilities[j], blank, manifest),
      probability: probabilities[j],
      pose: [...poses[j]],
      reconstruction: await toBase64Png(pictures[place], manifest.preprocessing),
    }));
    results.push({ filename, blank, objects: await Promise.all(objects) });
  }
  return { ...model.heading, results };
}

/** POST /explain. */
export async function explain(files, { model: name, version }) {
  const model = await open(name, version);
  const { manifest } = model;
  if (!manifest.graphs.explain)
    throw new Problem(409, "The bundle has no explain graph", `${name} has no explain graph; export its run again with: capsnet-export bundle`);
  const [{ filename, pixels }] = await decoded(files, manifest);
  const { heat, probabilities, logit_change, largest_logit_change, distances, ...made } = explanation(await model.explain(pixels), model);
  const perClass = { heat, probabilities, logit_change, largest_logit_change, distances };
  const classes = ranked(probabilities.at(-1)).map((j) => {
    const own = Object.entries(perClass).filter(([, values]) => values);
    return { label: manifest.class_names[j], ...Object.fromEntries(own.map(([field, values]) => [field, values.map((one) => one[j])])) };
  });
  const model_input = await toBase64Png(pixels, manifest.preprocessing);
  return { ...model.heading, filename, label: classes[0].label, model_input, classes, ...made };
}

/** The PNG grid of POST /reconstruct. */
export async function sweep({ model: name, version, pose, label, sweep: wanted }) {
  const model = await open(name, version);
  const { class_names: names, preprocessing } = model.manifest;
  const deltas = wanted ? deltasOf(wanted) : [0];
  const rows = wanted ? (wanted.dimensions ?? pose.map((_, dimension) => dimension)) : [0];
  const poses = rows.flatMap((dimension) => deltas.map((delta) => moved(pose, dimension, delta)));
  const pictures = await model.decode(poses, poses.map(() => names.indexOf(label)));
  return toPng(pictures, deltas.length, preprocessing);
}

function deltasOf({ start, stop, step }) {
  const columns = Math.floor((stop - start) / step + 1e-9) + 1;
  return Array.from({ length: columns }, (_, column) => Math.round((start + column * step) * DELTA_SCALE) / DELTA_SCALE);
}

function moved(pose, dimension, delta) {
  const made = Float32Array.from(pose);
  made[dimension] += Math.fround(delta);
  return made;
}

/** Files, of a model of two views pairs, as inputs: [{filename, pixels}]. */
async function decoded(files, { preprocessing, views, model }) {
  if (files.length % views) throw new Problem(422, "The pictures are not a pair", `${model} takes pairs of views; got ${files.length} files`);
  const inputs = [];
  for (let first = 0; first < files.length; first += views) {
    const pictures = [];
    for (let index = first; index < first + views; index++) pictures.push(await about(index, files, () => readPicture(files[index])));
    const pixels = await about(first + views - 1, files, () => viewsToInput(pictures, preprocessing));
    inputs.push({ filename: files[first].name ?? null, pixels });
  }
  return inputs;
}

/** What `read` gives; a problem with it says which file it is about. */
async function about(index, files, read) {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const name = files[index].name ? ` (${files[index].name})` : "";
    throw new Problem(error.status, error.title, `image ${index + 1} of ${files.length}${name}: ${error.message}`);
  }
}

/** Inputs with what the encoder says of them: [{filename, pixels, probabilities: [J], poses: [J][D]}]. */
async function encoded(model, inputs) {
  const found = [];
  for (let start = 0; start < inputs.length; start += BATCH) {
    const batch = inputs.slice(start, start + BATCH);
    const { probabilities, poses } = await model.encode(batch.map(({ pixels }) => pixels));
    batch.forEach((input, n) => {
      const row = (data, at, size) => data.subarray(at * size, (at + 1) * size);
      const own = Array.from({ length: model.classes }, (_, j) => row(poses.data, n * model.classes + j, model.poseSize));
      found.push({ ...input, probabilities: row(probabilities.data, n, model.classes), poses: own });
    });
  }
  return found;
}
