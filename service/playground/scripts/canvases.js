// Whether the browser lets the page read what it has painted.

const SIDE = 16;

/** Whether pixels are read as they were painted: protection against fingerprinting blocks that, or changes them. */
export function canReadPixels() {
  const drawing = new OffscreenCanvas(SIDE, SIDE).getContext("2d", { willReadFrequently: true });
  const level = (row) => row * SIDE;
  for (let row = 0; row < SIDE; row++) {
    drawing.fillStyle = `rgb(${level(row)}, ${level(row)}, ${level(row)})`;
    drawing.fillRect(0, row, SIDE, 1);
  }
  const { data } = drawing.getImageData(0, 0, SIDE, SIDE);
  return data.every((value, at) => value === (at % 4 === 3 ? 255 : level(Math.floor(at / 4 / SIDE))));
}
