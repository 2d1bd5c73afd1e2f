// Resizing as Pillow 13 does it, to the last bit of 8: the same weights, rounded alike, its two passes in the same order,
// and pixels that are whole numbers again between them. Canvases of browsers resize each in a way of their own.

// A plane is {width, height, channels, values}: Uint8Array of 0-255, or Float32Array; row by row.

const FIXED_POINT = 1 << 22; // weights of 8-bit pixels are whole numbers of this fraction

const FILTERS = {
  box: { support: 0.5, weight: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) },
  bilinear: { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: { support: 2, weight: cubic },
};

/** Python's round: halves go to the even number. */
export function round(value) {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest !== 0.5) return Math.round(value);
  return below % 2 ? below + 1 : below;
}

/**
 * Resize a plane.
 *
 * @param {{width: number, height: number, channels: number, values: Uint8Array | Float32Array}} plane
 * @param {number} width
 * @param {number} height
 * @param {{filter?: string, box?: number[]}} [options] the part that is shown: left, top, right, bottom
 */
export function resize(plane, width, height, { filter = "bilinear", box: part = [0, 0, plane.width, plane.height] } = {}) {
  const box = part.map(Math.fround); // as Pillow holds it
  const across = (made) =>
    width !== made.width || box[0] || box[2] !== made.width ? pass(made, width, made.height, box[0], box[2], FILTERS[filter], true) : made;
  const down = (made) =>
    height !== made.height || box[1] || box[3] !== made.height ? pass(made, made.width, height, box[1], box[3], FILTERS[filter], false) : made;
  const isDownFirst = plane.height > height && plane.height - height > 2 * (plane.width - width);
  return isDownFirst ? across(down(plane)) : down(across(plane));
}

/** Resize a plane of 8 bits, bilinear; one that is much larger is first shrunk by a whole factor, which is faster. */
export function resizeInSteps(plane, width, height, box = [0, 0, plane.width, plane.height]) {
  const [across, down] = [(box[2] - box[0]) / width, (box[3] - box[1]) / height];
  const factors = [across, down].map((scale) => Math.trunc(scale / 3) || 1);
  if (factors[0] < 2 && factors[1] < 2) return resize(plane, width, height, { box });
  const left = Math.max(0, Math.trunc(box[0] - across / 2));
  const top = Math.max(0, Math.trunc(box[1] - down / 2));
  const right = Math.min(plane.width, Math.ceil(box[2] + across / 2));
  const bottom = Math.min(plane.height, Math.ceil(box[3] + down / 2));
  const small = reduce(plane, factors, [left, top, right, bottom]);
  const shifted = [(box[0] - left) / factors[0], (box[1] - top) / factors[1], (box[2] - left) / factors[0], (box[3] - top) / factors[1]];
  return resize(small, width, height, { box: shifted });
}

/** Shrink a plane of 8 bits by whole factors: the mean of each block of pixels, also of those cut off at the edge. */
export function reduce({ width, channels, values }, [across, down], [left, top, right, bottom]) {
  const [wide, high] = [Math.ceil((right - left) / across), Math.ceil((bottom - top) / down)];
  const made = new Uint8Array(wide * high * channels);
  for (let row = 0, at = 0; row < high; row++)
    for (let column = 0; column < wide; column++) {
      const [x0, y0] = [left + column * across, top + row * down];
      const [x1, y1] = [Math.min(right, x0 + across), Math.min(bottom, y0 + down)];
      const count = (x1 - x0) * (y1 - y0);
      const reciprocal = Math.trunc(Math.fround(2 ** 32 / (256 * count))); // as Pillow divides
      for (let channel = 0; channel < channels; channel++) {
        let total = count >> 1;
        for (let y = y0; y < y1; y++)
          for (let x = x0; x < x1; x++) total += values[(y * width + x) * channels + channel];
        made[at++] = Math.floor((total * reciprocal) / 2 ** 24);
      }
    }
  return { width: wide, height: high, channels, values: made };
}

/** One pass, along the rows or along the columns. */
function pass({ width, channels, values }, toWidth, toHeight, start, stop, filter, isAcross) {
  const isBytes = values instanceof Uint8Array;
  const [from, to] = isAcross ? [width, toWidth] : [values.length / width / channels, toHeight];
  const weights = weightsOf(from, to, start, stop, filter, isBytes);
  const made = isBytes ? new Uint8ClampedArray(toWidth * toHeight * channels) : new Float32Array(toWidth * toHeight * channels);
  const step = (isAcross ? 1 : width) * channels;
  for (let y = 0, at = 0; y < toHeight; y++)
    for (let x = 0; x < toWidth; x++) {
      const { first, factors } = weights[isAcross ? x : y];
      const begin = isAcross ? (y * width + first) * channels : (first * width + x) * channels;
      for (let channel = 0; channel < channels; channel++) {
        let sum = isBytes ? FIXED_POINT / 2 : 0;
        for (let i = 0, place = begin + channel; i < factors.length; i++, place += step) sum += values[place] * factors[i];
        made[at++] = isBytes ? sum >> 22 : sum;
      }
    }
  return { width: toWidth, height: toHeight, channels, values: isBytes ? new Uint8Array(made.buffer) : made };
}

/** For each place, which pixels are added up, and with which factors. */
function weightsOf(from, to, start, stop, { support, weight }, isBytes) {
  const scale = Math.fround(stop - start) / to;
  const stretch = Math.max(scale, 1);
  const reach = support * stretch;
  return Array.from({ length: to }, (_, place) => {
    const center = start + (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach + 0.5));
    const end = Math.min(from, Math.trunc(center + reach + 0.5));
    const raw = Array.from({ length: end - first }, (_, i) => weight((i + first - center + 0.5) * (1 / stretch)));
    const total = raw.reduce((sum, one) => sum + one, 0);
    const factors = raw.map((one) => (isBytes ? Math.trunc((one / total) * FIXED_POINT + Math.sign(one) * 0.5) : one / total));
    return { first, factors };
  });
}

function cubic(signed) {
  const [x, a] = [Math.abs(signed), -0.5];
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}
