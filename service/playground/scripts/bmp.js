// Canvases as BMP files, which need no encoder: those of browsers wait until the page is idle, and a drawing page is not.

const [HEAD, LEVELS] = [14 + 40, 16];

/**
 * A canvas in 16 levels of gray, by its red channel.
 *
 * @param {OffscreenCanvas} canvas of a width that is a multiple of 8 pixels
 */
export function toBmp(canvas) {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const start = HEAD + 4 * LEVELS;
  const file = new Uint8Array(start + (width * height) / 2);
  writeHead(new DataView(file.buffer), { width, height, start });
  for (let level = 0; level < LEVELS; level++) file.fill(17 * level, HEAD + 4 * level, HEAD + 4 * level + 3);
  const levelAt = (pixel) => Math.round(data[4 * pixel] / 17);
  for (let pair = 0; pair < (width * height) / 2; pair++) file[start + pair] = (levelAt(2 * pair) << 4) | levelAt(2 * pair + 1);
  return new Blob([file], { type: "image/bmp" });
}

/** BITMAPFILEHEADER and BITMAPINFOHEADER: 4 bits a pixel with a palette, the upper row first, not compressed. */
function writeHead(view, { width, height, start }) {
  const put16 = (place, value) => view.setUint16(place, value, true);
  const put32 = (place, value) => view.setInt32(place, value, true);
  view.setUint16(0, 0x424d); // "BM"
  put32(2, view.byteLength);
  put32(10, start);
  put32(14, 40);
  put32(18, width);
  put32(22, -height);
  put16(26, 1);
  put16(28, 4);
  put32(34, view.byteLength - start);
  put32(46, LEVELS);
}
