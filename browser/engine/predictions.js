// From a model's outputs to predictions, as `service.inference.predictions` makes them.

const FLAT_RANGE = Math.fround(12 / 255); // of a picture that shows nothing

/** Indices of probabilities, the most probable class first. */
export const ranked = (probabilities) => [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);

/** Whether an input [H, W, C] shows nothing: in every channel all pixels are nearly equal. */
export function isBlank(pixels, channels) {
  return Array.from({ length: channels }, (_, channel) => {
    let [low, high] = [1, 0];
    for (let at = channel; at < pixels.length; at += channels) {
      low = Math.min(low, pixels[at]);
      high = Math.max(high, pixels[at]);
    }
    return Math.fround(high - low) <= FLAT_RANGE;
  }).every(Boolean);
}

/** Whether a probability reaches the model's threshold in a picture that shows something; null if there is none. */
export function isConfident(probability, blank, { confidence }) {
  return confidence ? !blank && probability >= Math.fround(confidence.min_probability) : null;
}

/**
 * What the model says of one input.
 *
 * @param {Float32Array} pixels [H, W, C]
 * @param {Float32Array} probabilities [J]
 * @param {Float32Array[]} poses [D] of each class
 * @param {object} manifest
 * @param {number} [count] of classes; all without it
 */
export function prediction(pixels, probabilities, poses, manifest, count) {
  const { class_names: names, objects_per_image: objects, preprocessing } = manifest;
  const order = ranked(probabilities);
  const labels = order.slice(0, objects).map((j) => names[j]);
  const blank = isBlank(pixels, preprocessing.channels);
  const confident = isConfident(probabilities[order[objects - 1]], blank, manifest);
  const classes = order.slice(0, count).map((j) => ({ label: names[j], probability: probabilities[j], pose: [...poses[j]] }));
  return { label: labels[0], labels, confident, blank, classes };
}
