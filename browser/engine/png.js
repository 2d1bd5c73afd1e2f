// A model's pixels as PNG files.

/** Pixels [H, W, C] in 0-1 as the base64 of a PNG file; two views stand side by side. */
export async function toBase64Png(pixels, facts) {
  const bytes = new Uint8Array(await (await toPng([pixels], 1, facts)).arrayBuffer());
  return btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), ""));
}

/**
 * Pictures row by row in one PNG file, pixel for pixel, nothing between them.
 *
 * @param {Float32Array[]} pictures [H, W, C] in 0-1
 * @param {number} columns
 * @param {{height: number, width: number, channels: number}} facts
 * @returns {Promise<Blob>}
 */
export async function toPng(pictures, columns, { height, width, channels }) {
  const views = channels === 2 ? 2 : 1;
  const canvas = new OffscreenCanvas(columns * width * views, (pictures.length / columns) * height);
  const drawing = canvas.getContext("2d");
  pictures.forEach((pixels, place) => {
    const [left, top] = [(place % columns) * width * views, Math.floor(place / columns) * height];
    for (let view = 0; view < views; view++) drawing.putImageData(image(pixels, width, height, channels, view), left + view * width, top);
  });
  return canvas.convertToBlob({ type: "image/png" });
}

function image(pixels, width, height, channels, view) {
  const made = new ImageData(width, height); // whose numbers are rounded and clipped when they are set
  for (let at = 0; at < width * height; at++) {
    for (let color = 0; color < 3; color++) made.data[4 * at + color] = pixels[at * channels + (channels === 3 ? color : view)] * 255;
    made.data[4 * at + 3] = 255;
  }
  return made;
}
