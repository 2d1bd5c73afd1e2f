// Objects over one another, each in its color.

const TINTS = ["#ff8a3c", "#3fa9ff"]; // of the first and the second object

/**
 * Draw gray pictures of the same size, each in its color, added up.
 *
 * @param {HTMLCanvasElement} canvas takes the size of the pictures
 * @param {HTMLCanvasElement[]} pictures
 */
export function addInColors(canvas, pictures) {
  const { width, height } = pictures[0];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const drawing = canvas.getContext("2d");
  drawing.clearRect(0, 0, width, height);
  drawing.globalCompositeOperation = "lighter";
  pictures.forEach((picture, index) => drawing.drawImage(tinted(picture, TINTS[index % TINTS.length]), 0, 0));
  drawing.globalCompositeOperation = "source-over";
}

function tinted(picture, color) {
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(picture, 0, 0);
  drawing.globalCompositeOperation = "multiply";
  drawing.fillStyle = color;
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}
