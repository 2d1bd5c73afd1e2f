// A digit as data sets show it, moved and turned: pictures of exactly the model's size, which no preprocessing
// brings back to the middle.

const PEN_SHARE = 0.1; // of the ink's box
const BOX_SHARE = 20 / 28;

/**
 * A digit's strokes in a picture of the model's size, light on dark.
 *
 * @param {number[][][]} strokes
 * @param {number} side pixels
 * @param {{right?: number, degrees?: number}} motion pixels, and degrees clockwise
 */
export function moved(strokes, side, { right = 0, degrees = 0 }) {
  const canvas = new OffscreenCanvas(side, side);
  const drawing = canvas.getContext("2d");
  drawing.fillRect(0, 0, side, side);
  const points = strokes.flat();
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const middle = [(Math.min(...xs) + Math.max(...xs)) / 2, (Math.min(...ys) + Math.max(...ys)) / 2];
  const extent = Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys));
  drawing.translate(side / 2 + right, side / 2);
  drawing.rotate((degrees * Math.PI) / 180);
  drawing.scale((BOX_SHARE * side * (1 - PEN_SHARE)) / extent, (BOX_SHARE * side * (1 - PEN_SHARE)) / extent);
  Object.assign(drawing, { strokeStyle: "white", lineWidth: extent * PEN_SHARE * 1.2, lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    drawing.beginPath();
    stroke.forEach(([x, y]) => drawing.lineTo(x - middle[0], y - middle[1]));
    drawing.stroke();
  }
  return canvas;
}
