// What the routing panel shows of an answer of /explain: the classes, or the capsule types of a layer below them.
//
// T iterations, R x C places, B bins of distances. Each is {grid, entropy, edges, rows}; a row has
// {label, heat: [T][R][C], values: [T], distances: [T][B]}.

const BINS = 16; // of the few capsules of a type

/** The classes, the most probable one first. */
export function classesOf({ grid, entropy, distance_edges: edges, classes }) {
  return { grid, entropy, edges, rows: classes.map((one) => ({ ...one, values: one.probabilities })) };
}

/**
 * The types of a convolutional layer: where their capsules are active, and how far the votes for these lie apart. Types
 * that are active everywhere or nowhere come last.
 */
export function typesOf({ grid, entropy, activations, distances }) {
  const edges = edgesTo(distances.flat(Infinity).reduce((most, one) => Math.max(most, one), 1e-6));
  const rows = activations[0].map((_, type) => {
    const heat = activations.map((types) => types[type]);
    const votes = heat.map((active, iteration) => histogram(distances[iteration][type].flat(), active.flat(), edges.at(-1)));
    return { label: `type ${type + 1}`, heat, values: heat.map((active) => mean(active.flat())), distances: votes };
  });
  rows.sort((a, b) => variance(b.heat.at(-1).flat()) - variance(a.heat.at(-1).flat()));
  return { grid, entropy, edges, rows };
}

/** The share of weights in each bin of values. */
function histogram(values, weights, largest) {
  const shares = new Array(BINS).fill(0);
  const total = weights.reduce((a, b) => a + b) || 1;
  values.forEach((value, index) => {
    shares[Math.min(BINS - 1, Math.floor((value / largest) * BINS))] += weights[index] / total;
  });
  return shares;
}

const edgesTo = (largest) => Array.from({ length: BINS + 1 }, (_, index) => (index * largest) / BINS);
const variance = (values) => mean(values.map((value) => value ** 2)) - mean(values) ** 2;
const mean = (values) => values.reduce((a, b) => a + b) / values.length;
