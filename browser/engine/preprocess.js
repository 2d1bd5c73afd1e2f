// A picture becomes the model's input as `export.contract.preprocess` makes it: the same rules, in the same order.

import { findInk, placeInk } from "./ink.js";
import { Problem } from "./problem.js";
import { resizeInSteps, round } from "./resize.js";

const INK_SIDE_PIXELS = 512; // ink is looked for at this resolution
const LEAST_INK_SIDE_PIXELS = 32;
const ALMOST_ALL = 0.75; // of the border of a picture that may be a data set's own

/**
 * The views of one object as the model's input, [H, W, C] in 0-1.
 *
 * @param {{width: number, height: number, channels: number, values: Uint8Array}[]} pictures RGB, `facts.views` of them
 * @param {object} facts preprocessing, of the manifest
 * @returns {Float32Array}
 * @throws {Problem} the views of a pair differ in size
 */
export function viewsToInput(pictures, facts) {
  const [first, last] = [pictures[0], pictures.at(-1)];
  if (first.width !== last.width || first.height !== last.height)
    throw new Problem(
      422,
      "The pictures are not a pair",
      `the right view is ${last.width}x${last.height}, and the left one before it ${first.width}x${first.height}; both views of a pair have the same size`,
    );
  const views = pictures.map((picture) => toInput(picture, { ...facts, channels: facts.channels / pictures.length }));
  if (views.length === 1) return views[0];
  return Float32Array.from({ length: 2 * views[0].length }, (_, place) => views[place % 2][place >> 1]);
}

/** A picture as the model's input, or as its channel of it for one view of a pair. */
function toInput(picture, facts) {
  const { width, height, channels, polarity, placement } = facts;
  const gray = inGray(picture);
  if (picture.width === width && picture.height === height) {
    const isInverted = polarity === "light-on-dark" && hasLightBorder(gray, ALMOST_ALL);
    return scaled(isInverted ? inverted(withChannels(picture, channels)) : withChannels(picture, channels));
  }
  if (placement === "digit") return digit(gray, facts);
  const isInverted = polarity === "light-on-dark" && hasLightBorder(gray, 0.5);
  const upright = isInverted ? inverted(picture) : picture;
  return scaled(withChannels(placement === "fit" ? fit(upright, facts) : centerCrop(upright, facts), channels));
}

/** The ink of a digit on its ground. */
function digit(gray, { width, height, channels, polarity }) {
  const largest = INK_SIDE_PIXELS / Math.max(gray.width, gray.height);
  const scale = Math.min(largest, Math.max(1, LEAST_INK_SIDE_PIXELS / Math.min(gray.width, gray.height)));
  const [wide, high] = [gray.width, gray.height].map((side) => Math.max(8, round(side * scale)));
  const small = resizeInSteps(gray, wide, high);
  const plane = { width: wide, height: high, values: scaled(small) };
  const { ink, isDark } = findInk(plane);
  const levels = placeInk(ink, width, height).values;
  const values = isDark && polarity === "any" ? levels.map((level) => 1 - level) : levels;
  return Float32Array.from({ length: values.length * channels }, (_, place) => values[Math.floor(place / channels)]);
}

/** The whole picture in the middle, around it black or, for any polarity, its border's color. */
function fit(picture, { width, height, polarity }) {
  const { channels } = picture;
  const ground = polarity === "light-on-dark" ? new Array(channels).fill(0) : borderColor(picture);
  const scale = Math.min(width / picture.width, height / picture.height);
  const [wide, high] = [picture.width, picture.height].map((side) => Math.max(1, round(side * scale)));
  const inner = resizeInSteps(picture, wide, high);
  const values = Uint8Array.from({ length: width * height * channels }, (_, place) => ground[place % channels]);
  const [left, top] = [(width - wide) >> 1, (height - high) >> 1];
  for (let row = 0; row < high; row++) {
    const line = inner.values.subarray(row * wide * channels, (row + 1) * wide * channels);
    values.set(line, ((top + row) * width + left) * channels);
  }
  return { width, height, channels, values };
}

/** A part from the middle that fills the frame. */
function centerCrop(picture, { width, height, crop_share: share = 1 }) {
  const scale = share * Math.min(picture.width / width, picture.height / height);
  const [across, down] = [width * scale, height * scale];
  const [left, top] = [(picture.width - across) / 2, (picture.height - down) / 2];
  return resizeInSteps(picture, width, height, [left, top, left + across, top + down]);
}

/** Whether this share of the border is lighter than the middle of the picture's range. */
function hasLightBorder(gray, share) {
  const [edge] = quantiles(border(gray, 0), [1 - share]);
  if (edge === 0) return false;
  const [low, high] = quantiles(gray.values, [0.02, 0.98]);
  return edge > (high - low > 12 ? (low + high) / 2 : 127);
}

function quantiles(levels, shares) {
  const ordered = Uint8Array.from(levels).sort();
  return shares.map((share) => {
    const place = share * (ordered.length - 1);
    const [below, above] = [ordered[Math.floor(place)], ordered[Math.ceil(place)]];
    return below + (above - below) * (place % 1);
  });
}

function borderColor(picture) {
  const medians = Array.from({ length: picture.channels }, (_, channel) => quantiles(border(picture, channel), [0.5])[0]);
  return medians.map(Math.trunc);
}

/** A channel's levels at the four edges. */
function border({ width, height, channels, values }, channel) {
  const level = (x, y) => values[(y * width + x) * channels + channel];
  const found = [];
  for (let x = 0; x < width; x++) found.push(level(x, 0), level(x, height - 1));
  for (let y = 0; y < height; y++) found.push(level(0, y), level(width - 1, y));
  return found;
}

const withChannels = (picture, channels) => (channels === 1 ? inGray(picture) : picture);

/** Luma (ITU-R BT.601), rounded as Pillow does. */
function inGray(picture) {
  const { width, height, channels, values } = picture;
  if (channels === 1) return picture;
  const gray = new Uint8Array(width * height);
  for (let at = 0, from = 0; at < gray.length; at++, from += 3)
    gray[at] = (values[from] * 19595 + values[from + 1] * 38470 + values[from + 2] * 7471 + 0x8000) >> 16;
  return { width, height, channels: 1, values: gray };
}

const inverted = (picture) => ({ ...picture, values: picture.values.map((level) => 255 - level) });
const scaled = ({ values }) => Float32Array.from(values, (level) => level / 255);
