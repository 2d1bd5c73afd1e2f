// Pictures in canvases.

const MOST_PIXELS = 50_000_000; // that are decoded, 200 MB of them; the service takes no more either, unless it is told to

/** The bitmap of a base64 PNG file. */
export async function fromBase64(png) {
  return createImageBitmap(new Blob([bytes(png)], { type: "image/png" }));
}

/** The bytes of a base64 text. */
export const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

/** The base64 text of bytes. */
export function base64(values) {
  let text = "";
  for (const byte of values) text += String.fromCharCode(byte); // maybe too many to spread
  return btoa(text);
}

/** The base64 text of a file. */
export const toBase64 = async (file) => base64(new Uint8Array(await file.arrayBuffer()));

/**
 * An image file in a square canvas, as large as fits, on the ground that the network gets; null if the browser cannot show it.
 * Nothing else of the decoded picture is kept.
 */
export async function fitted(file, side) {
  const size = await sizeOf(file);
  if (size.width * size.height > MOST_PIXELS) return null;
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return null;
  const scale = Math.min(side / bitmap.width, side / bitmap.height);
  const [width, height] = [bitmap.width * scale, bitmap.height * scale];
  const place = [(side - width) / 2, (side - height) / 2, width, height];
  const canvas = new OffscreenCanvas(side, side);
  const drawing = canvas.getContext("2d");
  drawing.imageSmoothingEnabled = scale < 4;
  drawing.drawImage(bitmap, ...place);
  bitmap.close();
  Object.assign(drawing, { fillStyle: groundOf(drawing.getImageData(0, 0, side, side), width * height) });
  drawing.globalCompositeOperation = "destination-over"; // under the picture
  drawing.fillRect(...place);
  return canvas;
}

/**
 * What transparent pixels lie on, for the network as well: a drawing on the ground that its ink stands out from, any other
 * picture on the one that it resembles.
 */
function groundOf({ data }, pixels) {
  let [opacity, light] = [0, 0];
  for (let at = 0; at < data.length; at += 4) {
    opacity += data[at + 3];
    light += ((0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2]) * data[at + 3]) / 255;
  }
  const isDrawing = opacity / pixels < 127.5;
  return light >= opacity / 2 !== isDrawing || !opacity ? "white" : "black";
}

/**
 * The width and height of an image file; 0 if the browser cannot show it. An element reads the file's header, and decodes
 * nothing before it is drawn.
 */
export async function sizeOf(file) {
  const image = new Image();
  const read = new Promise((resolve) => (image.onload = image.onerror = resolve));
  image.src = URL.createObjectURL(file);
  await read;
  URL.revokeObjectURL(image.src);
  return { width: image.naturalWidth, height: image.naturalHeight };
}

/** Show a bitmap pixel for pixel; the canvas takes its size. */
export function show(canvas, bitmap) {
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height)
    Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
  const drawing = canvas.getContext("2d");
  drawing.clearRect(0, 0, canvas.width, canvas.height);
  drawing.drawImage(bitmap, 0, 0);
}

/** Black again. */
export function blank(canvas) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
}

/** A canvas as a PNG file. */
export const toFile = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

/** Let the browser save a file. */
export function save(file, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
