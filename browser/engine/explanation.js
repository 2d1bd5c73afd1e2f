// From the outputs of an explain graph to maps, entropies, changes and histograms, as `service.inference.explanation`
// makes them, which says why.

// T iterations, J classes, K types of the capsules that vote, P places of each, B bins

const BINS = 40; // of the distances of votes, from 0 to the largest
const SMALLEST = 2 ** -126; // of normal float32

/**
 * How routing came to its answer for one input: {entropy: [T], heat: [T][J][R][R], ...}, see the API's /explain.
 *
 * @param {Record<string, {dims: number[], data: Float32Array}>} outputs of the graph, for one image
 * @param {{manifest: object, grids: object[]}} model with the grids of its routed capsules; the last votes for the classes
 */
export function explanation(outputs, { manifest, grids }) {
  const isEm = manifest.architecture === "matrix-capsnet";
  const [, iterations, classes, types, side] = (isEm ? outputs.assignments : outputs.couplings).dims;
  const shape = { iterations, classes, side, votes: types * side * side };
  const shared = { iterations, probabilities: split(outputs.activations.data, classes), grid: places(grids.at(-1)) };
  return { ...shared, ...(isEm ? { ...ofEm(outputs, shape), layers: grids.map((one) => layer(one, outputs)) } : ofAgreement(outputs, shape, Boolean(manifest.parameters.none_of_the_above))) };
}

/** Routing by agreement: each capsule's part in the length of the class's capsule, with its sign. */
function ofAgreement({ couplings, agreements, activations, activities }, shape, hasNone) {
  const parts = votes(shape, (at, t, j) => (couplings.data[at] * agreements.data[at]) / Math.max(activations.data[t * shape.classes + j], SMALLEST));
  const changes = split(agreements.data, shape.votes);
  const weights = activities.data.map((one) => Math.max(one, SMALLEST));
  const total = sum(weights);
  return {
    routing: "agreement",
    entropy: entropies(couplings.data, activities.data, shape, hasNone),
    heat: heatOf(parts, shape),
    logit_change: byClass(changes.map((one) => sum(one.map((value, at) => value * weights[at])) / total), shape),
    largest_logit_change: byClass(changes.map((one) => one.reduce((a, b) => Math.max(a, b))), shape),
  };
}

/** Routing by EM: what is assigned to the class, as the M-step weighs votes. */
function ofEm({ assignments, distances, activities }, shape) {
  const parts = votes(shape, (at) => assignments.data[at] * activities.data[at % shape.votes]);
  const largest = Math.max(distances.data.reduce((a, b) => Math.max(a, b)), 1e-6);
  const weights = split(assignments.data, shape.votes);
  return {
    routing: "em",
    entropy: entropies(assignments.data, activities.data, shape, false),
    heat: heatOf(parts, shape),
    distance_edges: Array.from({ length: BINS + 1 }, (_, bin) => (bin * largest) / BINS),
    distances: byClass(split(distances.data, shape.votes).map((one, row) => histogram(one, weights[row], largest)), shape),
  };
}

/** A convolutional layer of matrix capsules: its entropy [T], activations and distances [T][types][R][R]. */
function layer({ name, ...grid }, outputs) {
  const of = (what) => nested(outputs[`${name}.${what}`]);
  return { name, grid, entropy: of("entropy"), activations: of("activations"), distances: of("distances") };
}

/** A tensor of one image as arrays in arrays. */
function nested({ dims, data }) {
  const inner = dims.slice(2).reverse();
  return inner.reduce((values, size) => Array.from({ length: values.length / size }, (_, row) => values.slice(row * size, (row + 1) * size)), [...data]);
}

const places = ({ name, ...grid }) => grid;

/** A number for each vote [T, J, K, P]. */
function votes({ iterations, classes, votes: count }, value) {
  const made = new Float32Array(iterations * classes * count);
  for (let at = 0; at < made.length; at++) {
    const row = Math.floor(at / count);
    made[at] = value(at, Math.floor(row / classes), row % classes);
  }
  return made;
}

/** Votes summed over types: [T][J][R][R]. */
function heatOf(parts, shape) {
  const { side } = shape;
  const maps = split(parts, shape.votes).map((one) => {
    const map = new Float64Array(side * side);
    one.forEach((value, at) => (map[at % (side * side)] += value));
    return split(map, side).map((row) => [...row]);
  });
  return byClass(maps, shape);
}

/** Of what each capsule gives the classes, as a share of the largest entropy; mean by activity: [T]. */
function entropies(shares, activities, { iterations, classes, votes: count }, hasNone) {
  const largest = Math.log(Math.max(classes + Number(hasNone), 2));
  const weights = activities.map((one) => Math.max(one, SMALLEST));
  return Array.from({ length: iterations }, (_, t) => {
    let weighted = 0;
    for (let place = 0; place < count; place++) {
      const own = Array.from({ length: classes }, (_, j) => shares[(t * classes + j) * count + place]);
      if (hasNone) own.push(Math.max(0, 1 - sum(own)));
      weighted += weights[place] * sum(own.map((share) => -share * Math.log(Math.max(share, SMALLEST))));
    }
    return weighted / largest / sum(weights);
  });
}

/** Shares of the bins, which sum to 1. */
function histogram(distances, weights, largest) {
  const counts = new Array(BINS).fill(0);
  distances.forEach((distance, at) => (counts[Math.min(BINS - 1, Math.floor((distance / largest) * BINS))] += weights[at]));
  const total = Math.max(sum(counts), SMALLEST);
  return counts.map((count) => count / total);
}

const sum = (values) => values.reduce((total, one) => total + one, 0);
const split = (values, size) => Array.from({ length: values.length / size }, (_, row) => values.subarray(row * size, (row + 1) * size));
/** [T * J] things as [T][J]. */
const byClass = (things, { iterations, classes }) => Array.from({ length: iterations }, (_, t) => things.slice(t * classes, (t + 1) * classes));
