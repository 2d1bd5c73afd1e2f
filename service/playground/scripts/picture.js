// Pictures in canvases.

import { context } from "./dom.js";

/** The bitmap of a base64 PNG file. */
export async function fromBase64(png) {
  return createImageBitmap(new Blob([bytes(png)], { type: "image/png" }));
}

/** The bytes of a base64 text. */
export const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

/** The base64 of a file. */
export async function toBase64(file) {
  let text = "";
  for (const byte of new Uint8Array(await file.arrayBuffer())) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Show a bitmap pixel for pixel; the canvas takes its size. */
export function show(canvas, bitmap) {
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height)
    Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
  context(canvas).clearRect(0, 0, canvas.width, canvas.height);
  context(canvas).drawImage(bitmap, 0, 0);
}

/** Black again. */
export function blank(canvas) {
  context(canvas).clearRect(0, 0, canvas.width, canvas.height);
}

/** A canvas as a PNG file. */
export const toFile = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

/** Let the browser save a file. */
export function save(file, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
