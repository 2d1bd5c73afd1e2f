// Where in the image a class's capsule gets its agreement from, as a heat map over the image.

const SCALE = 8; // of the model's pixels
const WARM = [255, 138, 60]; // votes for the class
const COLD = [63, 169, 255]; // against it
const STRONGEST = 0.85; // opacity
const DIMMED = 0.55; // the image under it

/** The largest absolute value of heat maps, [..., R, C]. */
export const largest = (maps) => maps.flat(Infinity).reduce((most, one) => Math.max(most, Math.abs(one)), 1e-9);

/**
 * Draw a heat map over what the network sees.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {ImageBitmap} input of one view, or of two side by side
 * @param {{row_centers: number[], column_centers: number[]}} grid where the map's cells are, in pixels of a view
 * @param {number[][]} heat [R][C]
 * @param {{full: number, views: number}} scale the value of the strongest color; views side by side
 */
export function drawHeat(canvas, input, grid, heat, { full, views }) {
  const [width, height] = [input.width * SCALE, input.height * SCALE];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const drawing = canvas.getContext("2d");
  drawing.fillStyle = "black";
  drawing.fillRect(0, 0, width, height);
  drawing.imageSmoothingEnabled = false;
  drawing.globalAlpha = DIMMED;
  drawing.drawImage(input, 0, 0, width, height);
  drawing.globalAlpha = 1;
  drawing.imageSmoothingEnabled = true;
  const [top, tall] = span(grid.row_centers);
  const [left, wide] = span(grid.column_centers);
  const cells = colored(heat, full);
  for (let view = 0; view < views; view++) {
    const start = (view * input.width) / views;
    drawing.drawImage(cells, (start + left) * SCALE, top * SCALE, wide * SCALE, tall * SCALE);
  }
}

function colored(heat, full) {
  const [rows, columns] = [heat.length, heat[0].length];
  const canvas = new OffscreenCanvas(columns + 2, rows + 2); // a clear edge: the map fades out
  const drawing = canvas.getContext("2d");
  const pixels = drawing.createImageData(columns, rows);
  heat.flat().forEach((value, index) => {
    const color = value < 0 ? COLD : WARM;
    pixels.data.set([...color, 255 * STRONGEST * Math.min(1, Math.abs(value) / full)], 4 * index);
  });
  drawing.putImageData(pixels, 1, 1);
  return canvas;
}

/** From the edge before the first cell, and how far to the one after the last: `colored` has a cell more there. */
function span(centers) {
  const pitch = centers.length > 1 ? centers[1] - centers[0] : 1;
  return [centers[0] - 1.5 * pitch, pitch * (centers.length + 2)];
}
