// An image file becomes opaque RGB pixels of a working size, as `export.contract.pictures` reads it. The browser
// decodes it: what it cannot read is an error that says so.

import { Problem } from "./problem.js";
import { reduce } from "./resize.js";

const MIN_SIDE_PIXELS = 8; // nothing can be recognized on fewer
const MAX_PIXELS = 50_000_000;
const MAX_SIDE_PIXELS = 65_535; // as far as JPEG goes
const WORKING_SIDE_PIXELS = 1024; // larger pictures are shrunk by a whole factor, the shorter side to no less
const LONG_SIDE_PIXELS = 4 * WORKING_SIDE_PIXELS;
const STRIP_PIXELS = 2 ** 20; // taken from the browser at once

/**
 * Decode a file, upright and opaque.
 *
 * @param {Blob} file
 * @returns {Promise<{width: number, height: number, channels: 3, values: Uint8Array}>}
 * @throws {Problem} the browser does not read it, or it is too large or too small
 */
export async function readPicture(file) {
  const bitmap = await decoded(file);
  try {
    checkSize(bitmap);
    return onAGround(shrunk(bitmap));
  } finally {
    bitmap.close();
  }
}

async function decoded(file) {
  try {
    return await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    const detail = "this browser finds no picture in the file; browsers read PNG, JPEG, WebP, BMP and GIF";
    throw new Problem(415, "The picture cannot be read", detail);
  }
}

function checkSize({ width, height }) {
  const size = `picture is ${width}x${height}`;
  if (width * height > MAX_PIXELS)
    throw new Problem(413, "The picture has too many pixels", `${size}, ${width * height} pixels; at most ${MAX_PIXELS} are read`);
  if (Math.max(width, height) > MAX_SIDE_PIXELS)
    throw new Problem(413, "The picture has too many pixels", `${size}; a side may have at most ${MAX_SIDE_PIXELS} pixels`);
  if (Math.min(width, height) < MIN_SIDE_PIXELS)
    throw new Problem(422, "The picture cannot be read", `${size}; expected at least ${MIN_SIDE_PIXELS}x${MIN_SIDE_PIXELS} pixels`);
}

/** RGBA pixels of a working size, strip by strip: all of a photograph at once would cost a phone its memory. */
function shrunk(bitmap) {
  const { width, height } = bitmap;
  const [short, long] = [Math.min(width, height), Math.max(width, height)];
  const wanted = [Math.floor(short / WORKING_SIDE_PIXELS), Math.floor(long / LONG_SIDE_PIXELS), Math.floor(short / MIN_SIDE_PIXELS)];
  const factor = Math.max(1, wanted[0], Math.min(wanted[1], wanted[2]));
  const [wide, high] = [Math.ceil(width / factor), Math.ceil(height / factor)];
  const values = new Uint8Array(4 * wide * high);
  const rows = Math.max(1, Math.floor(STRIP_PIXELS / (width * factor))) * factor;
  const canvas = new OffscreenCanvas(width, Math.min(height, rows));
  const drawing = canvas.getContext("2d", { willReadFrequently: true });
  for (let top = 0; top < height; top += rows) {
    const count = Math.min(rows, height - top);
    drawing.clearRect(0, 0, width, count);
    drawing.drawImage(bitmap, 0, -top);
    const strip = { width, height: count, channels: 4, values: drawing.getImageData(0, 0, width, count).data };
    values.set(factor > 1 ? reducedRgba(strip, factor) : strip.values, 4 * wide * (top / factor));
  }
  return { width: wide, height: high, values };
}

/** Colors count as much as they are opaque. */
function reducedRgba(strip, factor) {
  const premultiplied = strip.values.map((level, at) => (at % 4 < 3 ? Math.round((level * strip.values[at | 3]) / 255) : level));
  const { values } = reduce({ ...strip, values: premultiplied }, [factor, factor], [0, 0, strip.width, strip.height]);
  return values.map((level, at) => (at % 4 < 3 && values[at | 3] ? Math.min(255, Math.round((level * 255) / values[at | 3])) : level));
}

/**
 * Lay RGBA pixels on white or black: a drawing on a transparent sheet on the one that its ink stands out from, any
 * other picture on the one it resembles.
 */
function onAGround({ width, height, values }) {
  const made = new Uint8Array(3 * width * height);
  let [opacity, light] = [0, 0];
  for (let at = 0; at < values.length; at += 4) {
    const luma = (values[at] * 19595 + values[at + 1] * 38470 + values[at + 2] * 7471 + 0x8000) >> 16;
    opacity += values[at + 3];
    light += Math.round((luma * values[at + 3]) / 255);
  }
  const isDrawing = opacity / (width * height) < 127.5;
  const ground = light >= opacity / 2 !== isDrawing || opacity === 0 ? 255 : 0;
  for (let at = 0, to = 0; at < values.length; at += 4) {
    const alpha = values[at + 3];
    for (let channel = 0; channel < 3; channel++)
      made[to++] = Math.round((ground * (255 - alpha) + values[at + channel] * alpha) / 255);
  }
  return { width, height, channels: 3, values: made };
}
