// The models of this site: their manifests, their graphs in ONNX Runtime, and the downloads that these need.

import "./ort/ort-wasm-simd-threaded.mjs"; // here, since ONNX Runtime tries no failed import again
import * as ort from "./ort/ort.wasm.min.mjs";
import { Problem } from "./problem.js";

const FOLDER = new URL("../models/", import.meta.url);
const WEIGHTS = "weights.bin"; // of all graphs of a model, in float16
const RUNTIME = new URL("./ort/ort-wasm-simd-threaded.wasm", import.meta.url).href;

ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
ort.env.logLevel = "error";

let listed = null; // a promise of what models.json says
let runtime = null; // a promise of the WebAssembly of ONNX Runtime, which itself would not fetch it a second time
const opened = new Map(); // by name and version

/** The models as the API lists them, each version with its manifest and the grids of its capsules. */
export async function models() {
  listed ??= download("models.json", "json").then(({ models }) => models);
  return kept(listed, () => (listed = null));
}

/** A version of a model, which has nothing loaded yet when it is first opened. */
export async function open(name, version) {
  const model = (await models()).find((one) => one.name === name);
  const found = model?.versions.find((one) => version === undefined || one.version === version);
  if (!found) throw new Problem(404, "No such model or version is served", `${name} ${version ?? ""} is not on this site`);
  const path = `${name}/${found.version}`;
  if (!opened.has(path)) opened.set(path, new Model(name, found));
  return opened.get(path);
}

class Model {
  #path;
  #bytes;
  #files = null; // a promise of the weights and the graphs
  #sessions = new Map(); // promises, by role

  constructor(name, { version, manifest, grids, weights_bytes: bytes }) {
    Object.assign(this, { name, version, manifest, grids });
    this.#path = `${name}/${version}`;
    this.#bytes = bytes;
  }

  /** What answers begin with. */
  get heading() {
    const { pose_shape: shape } = this.manifest;
    return { model: this.name, version: this.version, ...(shape.length > 1 ? { pose_shape: shape } : {}) };
  }

  get classes() {
    return this.manifest.class_names.length;
  }

  get poseSize() {
    return this.manifest.pose_shape.reduce((a, b) => a * b);
  }

  /** Download what it needs, unless that is there. */
  async load() {
    this.#files ??= this.#download(); // at once: without a connection, too, whatever comes later is there
    runtime ??= download(RUNTIME, "arrayBuffer").then((binary) => (ort.env.wasm.wasmBinary = binary));
    const [files] = await Promise.all([kept(this.#files, () => (this.#files = null)), kept(runtime, () => (runtime = null))]);
    return files;
  }

  /** Inputs [N, H, W, C] in 0-1 to {probabilities: [N, J], poses: [N, J, D]}, all flat. */
  async encode(pixels) {
    return this.#run("encoder", { pixels: this.#inputs(pixels) });
  }

  /** One input to what `explain_outputs` of the contract lists, flat; the shapes are those of the tensors. */
  async explain(pixels) {
    return this.#run("explain", { pixels: this.#inputs([pixels]) });
  }

  /**
   * Poses of one class each, decoded: pictures [H, W, C].
   *
   * @param {Float32Array[]} poses [D] each
   * @param {number[]} classes index of the class of each
   */
  async decode(poses, classes) {
    const [count, size] = [this.classes, this.poseSize];
    const [everywhere, mask] = [new Float32Array(poses.length * count * size), new Float32Array(poses.length * count)];
    poses.forEach((pose, n) => {
      everywhere.set(pose, (n * count + classes[n]) * size);
      mask[n * count + classes[n]] = 1;
    });
    const { reconstruction } = await this.#run("decoder", {
      poses: new ort.Tensor("float32", everywhere, [poses.length, count, size]),
      mask: new ort.Tensor("float32", mask, [poses.length, count]),
    });
    const pixels = reconstruction.data.length / poses.length;
    return poses.map((_, n) => reconstruction.data.subarray(n * pixels, (n + 1) * pixels));
  }

  #inputs(pixels) {
    const { height, width, channels } = this.manifest.preprocessing;
    const together = new Float32Array(pixels.length * pixels[0].length);
    pixels.forEach((one, n) => together.set(one, n * one.length));
    return new ort.Tensor("float32", together, [pixels.length, height, width, channels]);
  }

  async #run(role, feeds) {
    if (!this.#sessions.has(role)) this.#sessions.set(role, this.#open(role));
    const session = await kept(this.#sessions.get(role), () => this.#sessions.delete(role));
    return session.run(feeds);
  }

  async #open(role) {
    const { weights, graphs } = await this.load();
    return ort.InferenceSession.create(graphs[role], { externalData: [{ path: WEIGHTS, data: weights }] });
  }

  async #download() {
    const roles = Object.keys(this.manifest.graphs);
    const [weights, ...graphs] = await Promise.all([this.#downloadWeights(), ...roles.map((role) => this.#downloadGraph(role))]);
    return { weights, graphs: Object.fromEntries(roles.map((role, place) => [role, graphs[place]])) };
  }

  async #downloadGraph(role) {
    return new Uint8Array(await download(`${this.#path}/${role}.onnx`, "arrayBuffer"));
  }

  async #downloadWeights() {
    const path = `${this.#path}/${WEIGHTS}`;
    const weights = new Uint8Array(this.#bytes);
    const progress = { name: this.name, loaded: 0, total: this.#bytes };
    const reader = (await request(path)).body.getReader();
    const read = () => reader.read().catch((error) => fail(path, error.message));
    try {
      for (let part = await read(); !part.done; part = await read()) {
        if (progress.loaded + part.value.length > this.#bytes) fail(path, `it has more than ${this.#bytes} bytes`);
        weights.set(part.value, progress.loaded);
        progress.loaded += part.value.length;
        postMessage({ progress });
      }
      if (progress.loaded < this.#bytes) fail(path, `it ends after ${progress.loaded} of ${this.#bytes} bytes`);
    } finally {
      postMessage({ progress: { ...progress, loaded: this.#bytes } }); // nothing comes any more
    }
    return weights;
  }
}

/** The body of a file, "json" or "arrayBuffer". */
async function download(path, kind) {
  const answer = await request(path);
  return answer[kind]().catch((error) => fail(path, error.message)); // of a connection that is cut
}

async function request(path) {
  const answer = await fetch(new URL(path, FOLDER)).catch((error) => fail(path, error.message));
  if (!answer.ok) fail(path, `the host answers ${answer.status}`);
  return answer;
}

function fail(path, why) {
  throw new Problem(502, "A file of this site cannot be loaded", `${path}: ${why.replace(/\.$/, "")}. Check the connection, then try again.`);
}

/** What was promised; if that failed, it may be tried again. */
async function kept(promise, forget) {
  try {
    return await promise;
  } catch (error) {
    forget();
    throw error;
  }
}
