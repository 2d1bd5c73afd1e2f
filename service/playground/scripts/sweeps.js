// Reconstructions asked for ahead: one request brings all pictures that a slider can show, so that none is needed
// while it moves.

import * as api from "./api.js";

const KEPT = 24; // sweeps of one object

/** How far sliders go, in steps to each side, and the size of a step. */
export function slidersOf(manifest) {
  return manifest.pose_shape.length > 1 ? { steps: 25, step: 0.04 } : { steps: 30, step: 0.01 };
}

/** One object's capsule, and the pictures that it decodes to when one of its numbers moves. */
export class Sweeps {
  #asked = new Map(); // promises of strips, by dimension and the other numbers
  #ready = new Map();

  /**
   * @param {{name: string, version: number, manifest: object}} model
   * @param {string} label class of the capsule
   * @param {number[]} pose as the network gave it
   */
  constructor(model, label, pose) {
    Object.assign(this, { model, label, pose, range: slidersOf(model.manifest) });
  }

  /** The strip of a dimension if it is there: pictures from one end of its slider to the other. */
  ready(dimension, moves) {
    return this.#ready.get(key(dimension, moves));
  }

  /** Ask for the strip of a dimension, the others moved as they are. */
  ahead(dimension, moves) {
    const name = key(dimension, moves);
    if (!this.#asked.has(name)) this.#keep(name, this.#strip(dimension, moves, this.range.steps * 2 + 1));
    return this.#asked.get(name);
  }

  /** The first and the last picture of every dimension's slider: a strip for each. */
  async ends(moves) {
    const moved = moves.map((move, dimension) => (move ? dimension : -1)).filter((dimension) => dimension >= 0);
    const still = moves.map((_, dimension) => dimension).filter((dimension) => !moves[dimension]);
    const strips = [];
    const rows = still.length ? [this.#rows(still, moves, 2)] : [];
    const [grid, ...own] = await Promise.all([...rows, ...moved.map((one) => this.#strip(one, moves, 2))]);
    still.forEach((dimension, row) => (strips[dimension] = { bitmap: grid.bitmap, columns: 2, row, rows: still.length }));
    (rows.length ? own : [grid, ...own].filter(Boolean)).forEach((strip, i) => (strips[moved[i]] = strip));
    return strips;
  }

  /** The picture of the capsule with these moves. */
  async picture(moves) {
    const pose = this.moved(moves);
    return { bitmap: await this.#ask({ pose }), columns: 1, row: 0, rows: 1 };
  }

  /** Every dimension from `start` to `stop`, as one bitmap. */
  async sheet(moves, sweep) {
    return this.#ask({ pose: this.moved(moves), sweep });
  }

  /** The pose with these moves. */
  moved(moves) {
    return this.pose.map((value, dimension) => value + moves[dimension] * this.range.step);
  }

  async #strip(dimension, moves, columns) {
    const others = moves.map((move, one) => (one === dimension ? 0 : move));
    return this.#rows([dimension], others, columns);
  }

  async #rows(dimensions, moves, columns) {
    const reach = this.range.steps * this.range.step;
    const step = (2 * reach) / (columns - 1);
    const sweep = { dimensions, start: -round(reach), stop: round(reach), step: round(step) };
    const bitmap = await this.#ask({ pose: this.moved(moves), sweep });
    return { bitmap, columns, row: 0, rows: dimensions.length };
  }

  async #ask(body) {
    const { name, version } = this.model;
    return createImageBitmap(await api.sweep({ model: name, version, label: this.label, ...body }));
  }

  #keep(name, promise) {
    this.#asked.set(name, promise);
    const isKept = () => this.#asked.get(name) === promise; // it may have made way for others, and been asked for again
    promise.then(
      (strip) => isKept() && this.#ready.set(name, strip),
      () => isKept() && this.#asked.delete(name),
    );
    const oldest = this.#asked.size > KEPT && this.#asked.keys().next().value;
    if (oldest) {
      this.#asked.delete(oldest);
      this.#ready.delete(oldest);
    }
  }
}

/** Draw one picture of a strip on a canvas of its size. */
export function drawPicture(canvas, { bitmap, columns, row, rows }, column) {
  const [width, height] = [bitmap.width / columns, bitmap.height / rows];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const drawing = canvas.getContext("2d");
  drawing.drawImage(bitmap, column * width, row * height, width, height, 0, 0, width, height);
}

const key = (dimension, moves) => `${dimension}:${moves.map((move, one) => (one === dimension ? "*" : move))}`;
const round = (value) => Number(value.toFixed(6));
