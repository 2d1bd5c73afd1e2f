// A pose that is a matrix, as a heat map: orange above zero, blue below.

import { signed } from "./sliders.js";

const WARM = "235, 122, 40";
const COLD = "58, 134, 214";
const STRONGEST = 0.85; // opacity, in light colors

/**
 * Draw a matrix with its numbers.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} values row by row
 * @param {number} columns
 */
export function drawMatrix(canvas, values, columns) {
  const drawing = canvas.getContext("2d");
  const cell = canvas.width / columns;
  const largest = Math.max(...values.map(Math.abs), 1e-6);
  const style = getComputedStyle(canvas);
  const strongest = STRONGEST * style.getPropertyValue("--strength");
  canvas.setAttribute("aria-label", `The pose, row by row: ${values.map(signed).join(", ")}`);
  drawing.clearRect(0, 0, canvas.width, canvas.height);
  Object.assign(drawing, { textAlign: "center", textBaseline: "middle", font: `${cell * 0.3}px ${style.fontFamily}` });
  values.forEach((value, index) => {
    const [x, y] = [(index % columns) * cell, Math.floor(index / columns) * cell];
    drawing.fillStyle = `rgba(${value < 0 ? COLD : WARM}, ${(strongest * Math.abs(value)) / largest})`;
    drawing.fillRect(x + 1, y + 1, cell - 2, cell - 2);
    drawing.fillStyle = style.color;
    drawing.fillText(signed(value), x + cell / 2, y + cell / 2);
  });
}
