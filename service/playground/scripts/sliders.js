// One slider for each number of a pose, with the pictures at its two ends.

import { byId, element } from "./dom.js";
import { drawPicture } from "./sweeps.js";

const AHEAD_MS = 60; // of rest on a slider before its pictures are asked for

export class Sliders {
  #rows = [];
  #handlers;

  /** @param {{onAhead: (dimension: number) => void, onMove: (dimension: number, move: number) => void}} handlers */
  constructor(handlers) {
    this.#handlers = handlers;
  }

  /** A slider for each of `size` numbers, `range.steps` to each side. */
  setSize(size, range) {
    this.range = range;
    this.#rows = Array.from({ length: size }, (_, dimension) => this.#row(dimension));
    byId("sliders").replaceChildren(...this.#rows.map(({ row }) => row));
  }

  /** Show a pose and how far each number is moved, in steps. */
  show(pose, moves) {
    moves.forEach((move, dimension) => this.update(dimension, pose[dimension], move));
  }

  /** Show one number. */
  update(dimension, value, move) {
    const { row, input, number } = this.#rows[dimension];
    const by = move * this.range.step;
    input.value = move;
    number.textContent = signed(value + by);
    input.setAttribute("aria-valuetext", `${signed(value + by)}, moved by ${signed(by)}`);
    row.classList.toggle("moved", move !== 0);
  }

  /** Show the pictures at the ends, a strip of two for each dimension. */
  showEnds(strips) {
    strips.forEach((strip, dimension) => {
      const { ends } = this.#rows[dimension];
      ends.forEach((canvas, column) => drawPicture(canvas, strip, column));
    });
  }

  #row(dimension) {
    const { steps } = this.range;
    const input = element("input", { type: "range", min: -steps, max: steps, step: 1, value: 0 });
    input.setAttribute("aria-label", `Dimension ${dimension}`);
    const ends = [0, 1].map(() => element("canvas", { class: "end pixels", width: 28, height: 28, "aria-hidden": "true" }));
    const number = element("span", { class: "value", "aria-hidden": "true" }); // the slider says it
    const name = element("span", { class: "name", "aria-hidden": "true" }, String(dimension));
    const row = element("div", { class: "slider" }, name, ends[0], input, ends[1], number);
    this.#listen(row, input, dimension);
    return { row, input, number, ends };
  }

  #listen(row, input, dimension) {
    let rest = 0;
    const ahead = () => this.#handlers.onAhead(dimension);
    const soon = () => {
      clearTimeout(rest);
      rest = setTimeout(ahead, AHEAD_MS);
    };
    row.addEventListener("pointerenter", soon);
    input.addEventListener("focus", soon);
    for (const left of ["pointerleave", "focusout"]) row.addEventListener(left, () => clearTimeout(rest));
    input.addEventListener("pointerdown", ahead);
    input.addEventListener("input", () => this.#handlers.onMove(dimension, Number(input.value)));
    input.addEventListener("dblclick", () => this.#handlers.onMove(dimension, 0));
  }
}

/** A number with two digits and a minus sign; none before 0.00. */
export const signed = (value) => (Math.abs(value) < 0.005 ? "0.00" : value.toFixed(2).replace("-", "−"));
