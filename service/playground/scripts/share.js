// A link that brings back what is on the screen: the view, the model, the image and the sliders.

import { changed, parts } from "./address.js";
import { byId } from "./dom.js";
import { base64, bytes, fromBase64 } from "./picture.js";
import { packStrokes, unpackStrokes } from "./strokes.js";

/** The address of the view that is shown, and of what the explore view has; null if it cannot hold the image that is shown. */
export function linkTo(explore) {
  const { model, answer, objects, chosen } = explore.state;
  if (!model) return changed({});
  const kept = { model: model.name, version: model.version, chosen };
  const image = imageOf(explore, answer);
  if (!image && !explore.isEmpty && !byId("explore").hidden) return null;
  if (image) Object.assign(kept, { image, objects: objects.map(({ label, moves }) => ({ label, moves })) });
  return changed({ see: pack(kept) });
}

/** What the address of this page keeps of the explore view; null if nothing, or if it is damaged. */
export async function kept() {
  try {
    const found = unpack(parts().get("see"));
    if (!isWhole(found)) return null;
    if (found.image?.seen) await fromBase64(found.image.seen);
    return found;
  } catch {
    return null;
  }
}

/** Whether this is what `linkTo` packs. */
function isWhole({ image, objects, chosen }) {
  if (!image) return true;
  const isObject = ({ label, moves }) => typeof label === "string" && moves.every(Number.isFinite);
  return isImage(image) && objects.every(isObject) && Number.isInteger(chosen);
}

function isImage({ strokes, toy, seen }) {
  if (strokes) return strokes.every((flat) => flat.length >= 2 && flat.length % 2 === 0 && flat.every(Number.isFinite));
  return toy ? typeof toy === "string" : bytes(seen).length > 0;
}

/** Show the image and the sliders that an address keeps; the model has been chosen. */
export async function restore(explore, { image, objects, chosen }) {
  if (!image) return;
  await place(explore, image);
  if (!(await explore.settled())) return;
  const { answer } = explore.state;
  for (const [place, { label }] of objects.entries()) await explore.chooseClass(label, place);
  if (explore.state.answer === answer) await explore.capsule.restore({ objects, chosen });
}

/** Show the image of a link, which is no edit. */
async function place(explore, image) {
  const { onEdit } = explore;
  explore.onEdit = () => {};
  try {
    if (image.strokes) explore.pad.setStrokes(unpackStrokes(image.strokes));
    else if (image.toy) explore.pair.setPosition(image);
    else await explore.take(await filesOf(image.seen, explore.model.manifest.views));
  } finally {
    explore.onEdit = onEdit;
  }
}

/** The model's input as files, which have no names: one, or the left and the right half of two views. */
export async function filesOf(seen, views) {
  const file = new Blob([bytes(seen)], { type: "image/png" });
  if (views < 2) return [file];
  const both = await createImageBitmap(file);
  return Promise.all([0, 1].map((index) => half(both, index)));
}

/** What the model is shown: a toy, strokes, or any other image as the network saw it; null if there is none. */
function imageOf({ pad, pair, model }, answer) {
  const isPair = model.manifest.views === 2;
  if (isPair && pair.position) return pair.position;
  if (!isPair && pad.strokes.length) return { strokes: packStrokes(pad.strokes) };
  return answer && { seen: answer.result.model_input };
}

async function half(both, index) {
  const canvas = new OffscreenCanvas(both.width / 2, both.height);
  canvas.getContext("2d").drawImage(both, (-index * both.width) / 2, 0);
  return canvas.convertToBlob({ type: "image/png" });
}

function pack(value) {
  return base64(new TextEncoder().encode(JSON.stringify(value))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function unpack(text) {
  return JSON.parse(new TextDecoder().decode(bytes(text.replaceAll("-", "+").replaceAll("_", "/"))));
}
