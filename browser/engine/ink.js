// The pen strokes of one digit in a photograph, found and placed as MNIST places its digits: what
// `export.contract.ink` does, which says why.

import { resize, round } from "./resize.js";

// Planes here are {width, height, values} of one channel, 0-1.

const GROUND_WINDOW = 1 / 3; // of the shorter side
const CLEAR_SKEWNESS = 1;
const PEN = 0.12; // of the digit's longer side
const SHEET = 0.85; // of a rectangle
const MORE_INK = 2;
const INKED = 0.3;
const NOISE_DEVIATIONS = 6;
const LEAST_CONTRAST = 0.15;
const INK_LEVEL = 0.4;
const LEAST_SIZE = 0.06; // of the shorter side
const CUT_OFF = 0.3;
const ROUNDS = 4;

const BOX = 20 / 28;
const CENTER = 14.5 / 28;
const STROKE = 2.4 / 28;
const OVERSAMPLING = 8;
const fround = Math.fround; // wherever NumPy computes in float32, and a level at a threshold must fall on the same side

/**
 * Ink of the one digit in a picture, and whether it is darker than the paper. Paper is exactly 0 and strokes are
 * near 1; all is 0 where nothing stands out.
 */
export function findInk(gray) {
  const skewness = skewnessOf(gray);
  const isDark = skewness < 0;
  const ink = inkOf(gray, isDark);
  if (Math.abs(skewness) >= CLEAR_SKEWNESS || hasStrokesOfAPen(ink)) return { ink, isDark };
  const other = inkOf(gray, !isDark);
  const [own, others] = [ink, other].map(({ values }) => sum(values));
  const [less, more] = own > others ? [other, ink] : [ink, other];
  const isOther = isWrittenOn(more, less) ? less === other : others > MORE_INK * own;
  return isOther ? { ink: other, isDark: !isDark } : { ink, isDark };
}

/** Fit the ink's box into 20/28 of a frame, centered by mass, thin strokes thickened. */
export function placeInk(ink, width, height) {
  const crop = cropped(ink);
  if (!crop) return { width, height, values: new Float32Array(width * height) };
  const longer = Math.max(crop.width, crop.height);
  const [box, stroke] = [BOX, STROKE].map((share) => OVERSAMPLING * Math.min(height, width) * share);
  let large = scaledInk(crop, box / longer);
  const thickness = thicknessOf(large);
  const missing = Math.max(0, stroke - thickness);
  if (missing) {
    const room = (box - stroke) / Math.max(1, box - thickness); // thickened strokes must still fit the box
    large = dilateRound(scaledInk(crop, (room * box) / longer), round(missing / 2));
  }
  return centered(large, width, height);
}

/** Skewness of what stands out from its surroundings: below 0 for dark ink, near 0 for thick strokes. */
function skewnessOf(gray) {
  const { width, height, values } = gray;
  const cell = (GROUND_WINDOW / 2) * Math.min(height, width);
  const coarse = resized(gray, round(width / cell), round(height / cell), "box");
  const around = resized(coarse, width, height, "bicubic").values;
  const apart = values.map((level, at) => level - around[at]);
  const [square, cube] = [2, 3].map((power) => sum(apart.map((level) => level ** power)) / apart.length);
  return cube / Math.max(1e-6, Math.sqrt(square)) ** 3;
}

const inkedOf = (ink) => ({ ...ink, values: ink.values.map((level) => Number(level > fround(INKED))) });

/** Whether there is ink, and its strokes are thin beside its box. */
function hasStrokesOfAPen(ink) {
  const inked = inkedOf(ink);
  const box = boxOf(inked);
  return box !== null && thicknessOf(inked) < PEN * (1 + Math.max(box.right - box.left, box.bottom - box.top));
}

/** Whether the one is a sheet, in a picture of the table around it, and the other lies within it. */
function isWrittenOn(sheet, ink) {
  const [outer, inner] = [sheet, ink].map(inkedOf);
  const [around, within] = [outer, inner].map(boxOf);
  if (!around || !within) return false;
  if (within.top < around.top || within.bottom > around.bottom) return false;
  if (within.left < around.left || within.right > around.right) return false;
  const covered = outer.values.filter((isInk, at) => isInk || inner.values[at]).length;
  return covered > SHEET * rectangleAround(outer);
}

/** Area of the smallest rectangle around what is in a mask, turned by multiples of five degrees. */
function rectangleAround({ width, height, values }) {
  const ends = [];
  for (let y = 0; y < height; y++) {
    const line = values.subarray(y * width, (y + 1) * width);
    if (line.includes(1)) ends.push([line.indexOf(1), y], [line.lastIndexOf(1), y]);
  }
  const sideOf = (places) => places.reduce((a, b) => Math.max(a, b)) - places.reduce((a, b) => Math.min(a, b)) + 1;
  const areas = Array.from({ length: 18 }, (_, turn) => {
    const [cos, sin] = [Math.cos((turn * Math.PI) / 36), Math.sin((turn * Math.PI) / 36)];
    return sideOf(ends.map(([x, y]) => x * cos + y * sin)) * sideOf(ends.map(([x, y]) => y * cos - x * sin));
  });
  return Math.min(...areas);
}

/** Ink that is darker, or lighter, than the paper. */
function inkOf(gray, isDark) {
  const contrast = contrastOf(gray, isDark);
  const smooth = boxMean(contrast);
  const paper = fround(quantile(smooth.values, 0.5));
  const noise = 1.4826 * quantile(smooth.values.map((level) => Math.abs(level - paper)), 0.5);
  const floor = Math.max(LEAST_CONTRAST, paper + NOISE_DEVIATIONS * noise);
  const strokes = strokesIn(smooth, floor);
  const levels = contrast.values.filter((_, at) => strokes.values[at]);
  if (!levels.length) return { ...gray, values: new Float32Array(gray.values.length) };
  const full = Math.max(floor, quantile(levels, 0.7)); // of dotted strokes most is paper
  const near = dilate(strokes, 2).values;
  const values = contrast.values.map((level, at) => near[at] * clipped((level - 0.25 * full) / (0.6 * full)));
  return { ...gray, values };
}

/** How much a pixel stands out from its ground; on paper as a share of the paper's brightness. */
function contrastOf(gray, isDark) {
  const light = isDark ? gray : { ...gray, values: gray.values.map((level) => 1 - level) };
  const reach = Math.max(2, round((GROUND_WINDOW * Math.min(gray.width, gray.height)) / 2));
  const [straight, level] = [true, false].map((goesOn) => close(light, reach, goesOn).values);
  const values = light.values.map((own, at) => {
    const ground = Math.min(straight[at], level[at]);
    return isDark ? fround(ground - own) / Math.max(ground, fround(0.1)) : ground - own;
  });
  return { ...gray, values };
}

/** Closing: paint over dark things narrower than 2 x reach; beyond the edge the picture goes straight on, or level. */
function close(light, reach, isStraight) {
  const padded = framed(light, reach, isStraight ? straightOn : levelOn);
  const opened = dilate(negative(dilate(padded, reach)), reach);
  return negative(part(opened, reach, reach, light.width, light.height));
}

const negative = (plane) => ({ ...plane, values: plane.values.map((level) => -level) });
const levelOn = (line, place) => line[Math.min(line.length - 1, Math.max(0, place))];

/** What lies beyond the end of a line, mirrored at its last value, and at each end again if that is far. */
function straightOn(line, place) {
  const last = line.length - 1;
  if (place < 0) return 2 * line[0] - straightOn(line, -place);
  if (place > last) return 2 * line[last] - straightOn(line, 2 * last - place);
  return line[place];
}

/** A plane with a frame of `reach` pixels, whose values `beyond` tells of a line and a place outside of it. */
function framed({ width, height, values }, reach, beyond) {
  const [wide, high] = [width + 2 * reach, height + 2 * reach];
  const made = new Float32Array(wide * high);
  const column = new Float32Array(height);
  for (let x = 0; x < width; x++) {
    for (let y = 0; y < height; y++) column[y] = values[y * width + x];
    for (let y = 0; y < high; y++) made[y * wide + reach + x] = beyond(column, y - reach);
  }
  for (let y = 0; y < high; y++) {
    const row = made.subarray(y * wide + reach, y * wide + reach + width);
    for (let x = 0; x < reach; x++) {
      made[y * wide + x] = beyond(row, x - reach);
      made[y * wide + reach + width + x] = beyond(row, width + x);
    }
  }
  return { width: wide, height: high, values: made };
}

function part({ width, values }, left, top, wide, high) {
  const made = new Float32Array(wide * high);
  for (let y = 0; y < high; y++)
    made.set(values.subarray((top + y) * width + left, (top + y) * width + left + wide), y * wide);
  return { width: wide, height: high, values: made };
}

/** Dilation by a square: the largest value within `reach` pixels in each direction. */
function dilate({ width, height, values }, reach) {
  const rows = dilateAlong(values, { lines: height, length: width, next: 1, line: width }, reach);
  return { width, height, values: dilateAlong(rows, { lines: width, length: height, next: width, line: 1 }, reach) };
}

/** The same along one axis: the largest so far from both ends of blocks of a window's size (van Herk 1992). */
function dilateAlong(values, { lines, length, next, line }, reach) {
  const made = new Float32Array(values.length);
  const size = 2 * reach + 1;
  const padded = length + 2 * reach;
  const [levels, forward, backward] = [0, 0, 0].map(() => new Float32Array(padded));
  for (let one = 0; one < lines; one++) {
    const start = one * line;
    for (let at = 0; at < length; at++) levels[reach + at] = values[start + next * at];
    levels.fill(levels[reach], 0, reach).fill(levels[reach + length - 1], reach + length);
    for (let block = 0; block < padded; block += size) {
      const end = Math.min(padded, block + size);
      let most = -Infinity;
      for (let at = block; at < end; at++) forward[at] = most = levels[at] > most ? levels[at] : most;
      most = -Infinity;
      for (let at = end - 1; at >= block; at--) backward[at] = most = levels[at] > most ? levels[at] : most;
    }
    for (let at = 0; at < length; at++) {
      const right = forward[at + size - 1];
      made[start + next * at] = backward[at] > right ? backward[at] : right;
    }
  }
  return made;
}

/** Mean of 3 x 3 pixels. */
function boxMean(plane) {
  const { width, values } = framed(plane, 1, levelOn);
  const sums = values.map((_, at) => fround(values[at] + values[at + width]) + values[at + 2 * width]); // of what is below
  const made = new Float32Array(plane.values.length);
  for (let at = 0; at < made.length; at++) {
    const corner = Math.floor(at / plane.width) * width + (at % plane.width);
    made[at] = fround(fround(sums[corner] + sums[corner + 1]) + sums[corner + 2]) / 9;
  }
  return { ...plane, values: made };
}

/** Where the digit is, as a plane of 0 and 1: the heaviest thing that may be one, and its other strokes. */
function strokesIn(contrast, floor) {
  const left = { ...contrast, values: Float32Array.from(contrast.values) };
  const shorter = Math.min(contrast.width, contrast.height);
  const blur = Math.max(2, Math.floor(shorter / 50)); // how far a thing's unsharp edge may reach
  for (let round = 0; round < ROUNDS; round++) {
    const most = left.values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (most < fround(floor)) break;
    const level = fround(Math.max(floor, INK_LEVEL * most));
    const { labels, components } = labelComponents({ ...left, values: left.values.map((one) => Number(one > level)) }, left.values);
    const digits = components.filter(({ side, contact }) => side >= Math.max(3, LEAST_SIZE * shorter) && contact < CUT_OFF * side);
    if (digits.length) {
      const kept = groupStrokes(components, digits);
      return { ...contrast, values: Float32Array.from(labels, (label) => Number(kept.has(label))) };
    }
    const gone = dilate({ ...left, values: Float32Array.from(labels, (label) => Number(label >= 0)) }, blur).values;
    gone.forEach((one, at) => one && (left.values[at] = 0));
  }
  return { ...contrast, values: new Float32Array(contrast.values.length) };
}

/** The labels of the heaviest digit, rather one that is not cut off, and of the components near enough to be its strokes. */
function groupStrokes(components, digits) {
  const weight = ({ mass, contact }) => mass * (contact > 0 ? CUT_OFF : 1);
  const main = digits.reduce((best, one) => (weight(one) > weight(best) ? one : best));
  const gap = ({ top, left, bottom, right }) =>
    Math.max(Math.max(top - main.bottom, main.top - bottom), Math.max(left - main.right, main.left - right));
  const kept = components.filter((one) => gap(one) < 0.3 * main.side && one.mass > 0.02 * main.mass && (!one.contact || digits.includes(one)));
  return new Set(kept.map(({ label }) => label));
}

/** Tell connected regions apart; gaps of two pixels do not part them. */
function labelComponents(mask, weight) {
  const { width, height, values } = mask;
  const labels = connectedComponents(dilate(mask, 1));
  const components = [];
  values.forEach((inside, at) => {
    if (!inside) return (labels[at] = -1);
    const x = at % width;
    const y = Math.floor(at / width);
    const one = (components[labels[at]] ??= { label: labels[at], mass: 0, contact: 0, top: y, left: x, bottom: 0, right: 0 });
    one.mass += weight[at];
    one.contact += Number(x % (width - 1) === 0 || y % (height - 1) === 0);
    one.left = Math.min(one.left, x);
    one.right = Math.max(one.right, x + 1);
    one.bottom = y + 1;
  });
  for (const one of components) one.side = Math.max(one.bottom - one.top, one.right - one.left);
  return { labels, components };
}

/** Number the regions of 8-connected pixels from 0; -1 outside. */
function connectedComponents({ width, height, values }) {
  const labels = new Int32Array(values.length).fill(-1);
  let count = 0;
  for (let start = 0; start < values.length; start++) {
    if (!values[start] || labels[start] >= 0) continue;
    const open = [start];
    labels[start] = count;
    while (open.length) {
      const at = open.pop();
      const x = at % width;
      const y = Math.floor(at / width);
      for (let down = Math.max(0, y - 1); down <= y + 1 && down < height; down++)
        for (let across = Math.max(0, x - 1); across <= x + 1 && across < width; across++) {
          const next = down * width + across;
          if (!values[next] || labels[next] >= 0) continue;
          labels[next] = count;
          open.push(next);
        }
    }
    count++;
  }
  return labels;
}

/** The box in which there is ink, its last row and column within; null if there is none. */
function boxOf({ width, values }) {
  const first = values.findIndex((level) => level > 0);
  if (first < 0) return null;
  const top = Math.floor(first / width);
  const bottom = Math.floor(values.findLastIndex((level) => level > 0) / width);
  let [left, right] = [width, 0];
  values.forEach((level, at) => {
    if (!level) return;
    left = Math.min(left, at % width);
    right = Math.max(right, at % width);
  });
  return { top, bottom, left, right };
}

/** The part of a plane in which there is ink; null if there is none. */
function cropped(ink) {
  const box = boxOf(ink);
  return box && part(ink, box.left, box.top, box.right - box.left + 1, box.bottom - box.top + 1);
}

/** Resize ink; strokes that pale because they become thinner than a pixel are brought back to full. */
function scaledInk(ink, scale) {
  const large = resized(ink, Math.max(1, round(ink.width * scale)), Math.max(1, round(ink.height * scale)), "bilinear");
  const most = large.values.reduce((a, b) => Math.max(a, b), 0);
  const full = quantile(large.values.filter((level) => level >= most / 2), 0.5);
  return { ...large, values: large.values.map((level) => clipped(level / full)) };
}

/** Mean width of strokes, pixels: a stroke's area is half its outline times its width. */
function thicknessOf({ width, height, values }) {
  const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && values[y * width + x] > 0.5;
  let [area, down, across] = [0, 0, 0];
  for (let y = 0; y <= height; y++)
    for (let x = 0; x <= width; x++) {
      area += inside(x, y);
      down += inside(x, y) !== inside(x, y - 1);
      across += inside(x, y) !== inside(x - 1, y);
    }
  return (2 * area) / Math.max(1, Math.hypot(down, across));
}

/** Draw over with a round pen: largest value within `radius` pixels; grows by `radius` on each side. */
function dilateRound(plane, radius) {
  const [width, height] = [plane.width + 2 * radius, plane.height + 2 * radius];
  const thick = new Float32Array(width * height);
  for (let y = -radius; y <= radius; y++) {
    const reach = Math.trunc(Math.sqrt(radius * radius - y * y));
    for (let row = 0; row < plane.height; row++)
      for (let column = 0; column < plane.width; column++) {
        const level = plane.values[row * plane.width + column];
        if (!level) continue;
        const at = (row + radius + y) * width + column + radius;
        for (let place = at - reach; place <= at + reach; place++) if (thick[place] < level) thick[place] = level;
      }
  }
  return { width, height, values: thick };
}

/** Put oversampled ink into the frame, its center of mass where MNIST's is. */
function centered(large, width, height) {
  const columns = new Float64Array(large.width);
  const rows = new Float64Array(large.height);
  large.values.forEach((level, at) => {
    columns[at % large.width] += level;
    rows[Math.floor(at / large.width)] += level;
  });
  const [left, top] = [startOf(columns, OVERSAMPLING * width), startOf(rows, OVERSAMPLING * height)];
  const frame = new Float32Array(width * height);
  large.values.forEach((level, at) => {
    const x = Math.floor((left + (at % large.width)) / OVERSAMPLING);
    const y = Math.floor((top + Math.floor(at / large.width)) / OVERSAMPLING);
    if (x >= 0 && y >= 0 && x < width && y < height) frame[y * width + x] += level / OVERSAMPLING ** 2;
  });
  return { width, height, values: frame };
}

function startOf(profile, side) {
  const mass = sum(profile);
  const moment = sum(profile.map((one, place) => one * (place + 0.5)));
  return round(round(1000 * (CENTER * side - moment / mass)) / 1000); // of a symmetric digit a half, but for noise
}

const resized = (plane, width, height, filter) => resize({ ...plane, channels: 1 }, width, height, { filter });
const sum = (values) => values.reduce((total, one) => total + one, 0);
const clipped = (level) => Math.min(1, Math.max(0, level));

/** As np.quantile: linear between two values. */
function quantile(values, share) {
  const ordered = Float32Array.from(values).sort();
  const place = share * (ordered.length - 1);
  const [below, above] = [ordered[Math.floor(place)], ordered[Math.ceil(place)]];
  return below + (above - below) * (place % 1);
}
