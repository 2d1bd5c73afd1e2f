// Samples for the drawing area: digits as pen strokes, each one a button.

import { element } from "./dom.js";
import { onScheme } from "./scheme.js";
import { ink, snapped, unpackStrokes } from "./strokes.js";
import { request } from "./transport.js";

const APART = 0.26; // how far the digits of a pair are moved from each other, of the area's side
const SIZE_IN_PAIR = 0.82;
const SIDE = 72; // pixels of a sample
const PAIRS = [[3, 8], [1, 7], [2, 5], [0, 4], [6, 9], [8, 1], [5, 0], [4, 3], [9, 2], [7, 6]];

let digits = null;
let shown = []; // {canvas, strokes}

/** The strokes of the ten digits. */
export async function digitStrokes() {
  digits ??= request("playground/samples/digits.json", { tellsSlow: false }).catch((error) => {
    digits = null; // to be tried again
    throw error;
  });
  return (await digits).map(unpackStrokes);
}

/** Samples that suit a model: [{name, strokes}]; none for models of other things than digits. */
export async function samplesFor(manifest) {
  const names = manifest.class_names;
  if (names.length !== 10 || names.some((name, index) => name !== String(index))) return [];
  const strokes = await digitStrokes();
  if (manifest.objects_per_image < 2) return strokes.map((one, digit) => ({ name: String(digit), strokes: one }));
  return PAIRS.map(([first, second]) => ({
    name: `${first} and ${second}`,
    strokes: [...moved(strokes[first], -APART / 2), ...moved(strokes[second], APART / 2)],
  }));
}

/** Fill the group with a button for each sample. */
export function showSamples(group, samples, onChoose) {
  group.hidden = !samples.length;
  shown = samples.map(({ strokes }) => ({ strokes, canvas: element("canvas", { width: SIDE, height: SIDE }) }));
  group.replaceChildren(...samples.map((sample, index) => button(sample, shown[index].canvas, onChoose)));
  paint();
}

onScheme(() => paint());

function paint() {
  for (const { canvas, strokes } of shown) {
    const drawing = canvas.getContext("2d");
    drawing.clearRect(0, 0, SIDE, SIDE);
    ink(drawing, strokes, { side: SIDE, color: getComputedStyle(canvas).color });
  }
}

function button({ name, strokes }, canvas, onChoose) {
  const made = element("button", { class: "sample", title: name, "aria-label": `Sample: ${name}` }, canvas);
  made.addEventListener("click", () => onChoose(strokes));
  return made;
}

function moved(strokes, by) {
  const place = (at) => 0.5 + (at - 0.5) * SIZE_IN_PAIR + by / 2;
  return strokes.map((stroke) => stroke.map((point) => snapped(point.map(place))));
}
