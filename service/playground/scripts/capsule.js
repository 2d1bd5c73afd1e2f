// The capsule panel: the poses of one object, or of two over one another, to move and to decode.

import { byId, element, enable, isEnabled } from "./dom.js";
import { Latest } from "./latest.js";
import { drawMatrix } from "./matrix.js";
import { blank } from "./picture.js";
import { Pending } from "./pending.js";
import { onScheme } from "./scheme.js";
import { openSheet } from "./sheet.js";
import { Sliders } from "./sliders.js";
import { drawPicture, slidersOf, Sweeps } from "./sweeps.js";
import { addInColors } from "./tint.js";

const ENDS_AFTER_MS = 180; // of rest

export class Capsule {
  // {label, probability, sweeps, moves, picture, drawn, original}: the picture, once it has come, shows the moves `drawn`.
  #objects = [];
  #chosen = 0;
  #endsTimer = 0;
  #pending = new Pending(document.querySelector(".decoded"));
  #onChoose;
  #onEdit;
  #sheets = new Latest();

  /**
   * @param {(label: string) => void} onChoose called with the class whose capsule is shown
   * @param {() => void} onEdit called when somebody moves a number, or chooses another object
   */
  constructor(onChoose, onEdit) {
    this.#onChoose = onChoose;
    this.#onEdit = onEdit;
    this.sliders = new Sliders({
      onAhead: (dimension) => this.#ahead(dimension),
      onMove: (dimension, move) => this.#move(dimension, move),
    });
    onScheme(() => this.#one && this.#numbers());
    byId("reset").addEventListener("click", ({ currentTarget }) => isEnabled(currentTarget) && this.#reset());
    byId("sheet").addEventListener("click", () => {
      const { sweeps, moves } = this.#one;
      this.#sheets.ask((signal) => openSheet(sweeps, moves, signal), true);
    });
  }

  /** Prepare for a model; nothing is shown until there is an answer. */
  setModel(model) {
    this.model = model;
    this.sliders.setSize(model.manifest.pose_shape.reduce((a, b) => a * b), slidersOf(model.manifest));
    const isMatrix = model.manifest.pose_shape.length > 1;
    byId("matrix").hidden = !isMatrix;
    this.clear();
  }

  /** Nothing to show. */
  clear() {
    clearTimeout(this.#endsTimer);
    this.#sheets.cancel();
    this.#objects = [];
    this.#pending.end();
    byId("capsule").hidden = true;
    blank(byId("decoded"));
  }

  /**
   * Show the capsules of an answer, unmoved.
   *
   * @param {{label: string, probability: number, pose: number[], bitmap: ImageBitmap}[]} objects
   * @param {boolean} isFinal false while somebody draws: the ends of the sliders wait
   */
  show(objects, isFinal) {
    this.#sheets.cancel();
    this.#objects = objects.map((object) => this.#object(object));
    this.#chosen = Math.min(this.#chosen, objects.length - 1);
    byId("capsule").hidden = false;
    this.#showObjects();
    this.#showChosen(isFinal);
  }

  /**
   * Show another class's capsule in place of the chosen one, or of the one at a place: its sliders at once, its
   * picture when it has come.
   */
  async choose({ label, probability, pose }, place) {
    const objects = this.#objects;
    const known = objects.findIndex((object) => object.label === label);
    this.#chosen = place ?? (known < 0 ? this.#chosen : known);
    if (!this.#one) return;
    if (known < 0) objects[this.#chosen] = this.#object({ label, probability, pose });
    else [objects[known], objects[this.#chosen]] = [objects[this.#chosen], objects[known]];
    this.#showObjects();
    this.#showChosen(true);
    if (known < 0) await this.#decode(this.#one);
  }

  /** What a link keeps, and what the snippets decode: [{label, pose, moves}], and which of them is chosen. */
  get state() {
    const objects = this.#objects.map(({ label, sweeps, moves }) => ({ label, pose: sweeps.moved(moves), moves }));
    return { objects, chosen: this.#chosen };
  }

  /** Move the sliders of a link: at once, their pictures when they have come. */
  async restore({ objects, chosen }) {
    if (!this.#objects.length) return; // a blank image, or a model without a decoder
    this.#chosen = objects[chosen] ? Math.min(chosen, this.#objects.length - 1) : 0;
    const decoded = this.#objects.map((object, index) => this.#restoreOne(object, objects[index]));
    this.#showObjects();
    this.#showChosen(true);
    await Promise.all(decoded);
  }

  get #one() {
    return this.#objects[this.#chosen];
  }

  #object({ label, probability, pose, bitmap }) {
    const object = { label, probability, sweeps: new Sweeps(this.model, label, pose), moves: pose.map(() => 0) };
    if (bitmap) object.original = draw(object, { bitmap, columns: 1, row: 0, rows: 1 }, 0);
    return object;
  }

  async #restoreOne(object, kept) {
    if (kept?.label !== object.label || kept.moves.length !== object.moves.length) return;
    object.moves = [...kept.moves];
    await this.#decode(object);
  }

  async #decode(object) {
    const moves = [...object.moves];
    const strip = await object.sweeps.picture(moves);
    if (moves.every((move) => move === 0)) object.original = strip;
    this.#take(object, moves, strip, 0);
  }

  /** Show a picture of an object that has come, unless the object has moved on. */
  #take(object, moves, strip, column) {
    if (!isSame(moves, object.moves)) return;
    draw(object, strip, column);
    if (this.#objects.includes(object)) this.#paint();
  }

  #ahead(dimension) {
    const object = this.#one;
    if (object) object.sweeps.ahead(dimension, object.moves).catch(() => {}); // said when the slider moves
  }

  async #move(dimension, move) {
    const object = this.#one;
    if (object.moves[dimension] !== move) this.#onEdit();
    object.moves[dimension] = move;
    this.sliders.update(dimension, object.sweeps.pose[dimension], move);
    this.#numbers();
    this.#mark();
    const moves = [...object.moves];
    const strip = await object.sweeps.ahead(dimension, moves);
    this.#take(object, moves, strip, move + object.sweeps.range.steps);
    if (object === this.#one) this.#endsLater();
  }

  #reset() {
    this.#onEdit();
    const object = this.#one;
    object.moves.fill(0);
    if (object.original) draw(object, object.original, 0);
    this.#showChosen(true);
  }

  #showObjects() {
    const group = byId("objects");
    if (this.#objects.length < 2) {
      const { label } = this.#one;
      group.replaceChildren(element("span", { class: "note" }, `of the ${label}`));
      return;
    }
    group.replaceChildren(...this.#objects.map((object, index) => this.#objectChoice(object, index)));
  }

  #objectChoice({ label, probability }, index) {
    const input = element("input", { type: "radio", name: "object", checked: index === this.#chosen });
    input.setAttribute("aria-label", `${label}, probability ${probability.toFixed(2)}`);
    input.addEventListener("change", () => {
      this.#onEdit();
      this.#chosen = index;
      this.#showChosen(true);
    });
    const swatch = element("span", { class: `swatch ${index ? "second" : "first"}` });
    return element("label", { class: "object" }, input, swatch, `${label}`, element("span", { class: "note" }, probability.toFixed(2)));
  }

  #showChosen(isFinal) {
    const object = this.#one;
    this.sliders.show(object.sweeps.pose, object.moves);
    this.#numbers();
    this.#paint();
    this.#onChoose(object.label);
    clearTimeout(this.#endsTimer);
    if (isFinal) this.#endsLater();
  }

  #numbers() {
    const { sweeps, moves } = this.#one;
    enable(byId("reset"), moves.some((move) => move !== 0));
    const shape = this.model.manifest.pose_shape;
    if (shape.length > 1) drawMatrix(byId("matrix"), sweeps.moved(moves), shape[1]);
  }

  /** Whether the picture that is shown is that of all objects as they are. */
  #mark() {
    if (this.#objects.every(({ drawn, moves }) => drawn && isSame(drawn, moves))) this.#pending.end();
    else this.#pending.begin();
  }

  #paint() {
    this.#mark();
    if (this.#objects.some(({ picture }) => !picture)) return; // what is there keeps its name until then
    const labels = this.#objects.map(({ label }) => label).join(" and the ");
    byId("decoded").setAttribute("aria-label", `Reconstruction of the ${labels}`);
    const pictures = this.#objects.map(({ picture }) => picture);
    if (pictures.length > 1) addInColors(byId("decoded"), pictures);
    else drawPicture(byId("decoded"), { bitmap: pictures[0], columns: 1, row: 0, rows: 1 }, 0);
  }

  #endsLater() {
    clearTimeout(this.#endsTimer);
    this.#endsTimer = setTimeout(async () => {
      const object = this.#one;
      const moves = [...object.moves];
      const strips = await object.sweeps.ends(moves);
      if (object === this.#one && isSame(moves, object.moves)) this.sliders.showEnds(strips);
    }, ENDS_AFTER_MS);
  }
}

const isSame = (moves, others) => moves.every((move, index) => move === others[index]);

/** Draw one picture of a strip as that of an object as it is; returns the strip. */
function draw(object, strip, column) {
  object.picture ??= document.createElement("canvas");
  object.drawn = [...object.moves];
  drawPicture(object.picture, strip, column);
  return strip;
}
