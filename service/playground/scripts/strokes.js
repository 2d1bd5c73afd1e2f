// Pen strokes: lists of points [x, y] in 0-1 of the drawing area.

import { toBmp } from "./bmp.js";

export const PEN = 0.082; // of the area's side
const GRID = 255; // steps along the area's side: points lie on these, so that a link has small numbers
const SENT_PIXELS = 144; // side of the picture that is sent: more take time, and change no answer

/** Draw strokes on a square part of a canvas, in its own ink. */
export function ink(drawing, strokes, { left = 0, top = 0, side, color }) {
  Object.assign(drawing, { lineCap: "round", lineJoin: "round", lineWidth: PEN * side });
  drawing.strokeStyle = color;
  const place = ([x, y]) => [left + x * side, top + y * side];
  for (const stroke of strokes) {
    const points = stroke.map(place);
    drawing.beginPath();
    drawing.moveTo(...points[0]);
    drawing.lineTo(points[0][0] + 0.01, points[0][1]); // a dot, if there is no more
    for (let i = 1; i < points.length - 1; i++) {
      const [[x, y], [nextX, nextY]] = [points[i], points[i + 1]];
      drawing.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
    }
    drawing.lineTo(...points.at(-1));
    drawing.stroke();
  }
}

/**
 * Strokes as an image file, dark on light.
 *
 * @param {number[][][]} strokes
 * @param {number} margin on each side, as a share of the drawing area
 */
export function strokesToFile(strokes, margin) {
  const canvas = new OffscreenCanvas(SENT_PIXELS, SENT_PIXELS);
  const drawing = canvas.getContext("2d", { willReadFrequently: true });
  drawing.fillStyle = "white";
  drawing.fillRect(0, 0, SENT_PIXELS, SENT_PIXELS);
  const side = SENT_PIXELS / (1 + 2 * margin);
  drawing.rect(margin * side, margin * side, side, side);
  drawing.clip(); // what lies beyond the area is not on the screen either
  ink(drawing, strokes, { left: margin * side, top: margin * side, side, color: "black" });
  return toBmp(canvas);
}

const steps = (at) => Math.round(at * GRID);

/** The nearest point that a link can carry: of such points, it brings back the same picture. */
export const snapped = (point) => point.map((at) => steps(at) / GRID);

/** Strokes as small numbers, for a link. */
export const packStrokes = (strokes) => strokes.map((stroke) => stroke.flat().map(steps));

/** The strokes of a link. */
export const unpackStrokes = (packed) =>
  packed.map((flat) =>
    Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i] / GRID, flat[2 * i + 1] / GRID]),
  );
