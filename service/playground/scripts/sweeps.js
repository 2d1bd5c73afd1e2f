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
  #strips = new Map(); // promises, by dimension and the other numbers

  /**
   * @param {{name: string, version: number, manifest: object}} model
   * @param {string} label class of the capsule
   * @param {number[]} pose as the network gave it
   */
  constructor(model, label, pose) {
    Object.assign(this, { model, label, pose, range: slidersOf(model.manifest) });
  }

  /** The strip of a dimension, the others moved as they are: pictures from one end of its slider to the other. */
  ahead(dimension, moves) {
    const name = key(dimension, moves);
    if (!this.#strips.has(name)) this.#keep(name, this.#rows([dimension], moves, this.range.steps * 2 + 1));
    return this.#strips.get(name);
  }

  /** The first and the last picture of every dimension's slider: a strip for each. */
  async ends(moves) {
    const still = [...moves.keys()].filter((dimension) => !moves[dimension]);
    const together = still.length ? this.#rows(still, moves, 2) : null; // of the moved ones, each needs another pose
    const strip = async (move, dimension) =>
      move ? this.#rows([dimension], moves, 2) : { ...(await together), row: still.indexOf(dimension) };
    return Promise.all(moves.map(strip));
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

  /** Of each of these dimensions, unmoved, the pictures from one end of its slider to the other. */
  async #rows(dimensions, moves, columns) {
    const pose = this.moved(moves.map((move, dimension) => (dimensions.includes(dimension) ? 0 : move)));
    const reach = this.range.steps * this.range.step;
    const step = (2 * reach) / (columns - 1);
    const sweep = { dimensions, start: -round(reach), stop: round(reach), step: round(step) };
    const bitmap = await this.#ask({ pose, sweep });
    return { bitmap, columns, row: 0, rows: dimensions.length };
  }

  async #ask(body) {
    const { name, version } = this.model;
    return createImageBitmap(await api.sweep({ model: name, version, label: this.label, ...body }));
  }

  #keep(name, strip) {
    this.#strips.set(name, strip);
    strip.catch(() => this.#strips.delete(name)); // to be asked for again
    if (this.#strips.size > KEPT) this.#strips.delete(this.#strips.keys().next().value);
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
