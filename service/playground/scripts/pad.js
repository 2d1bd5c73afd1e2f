// The drawing area: pen strokes by mouse, touch, pen or keys, or one image; with undo.

import { byId, enable } from "./dom.js";
import { fitted } from "./picture.js";
import { onScheme } from "./scheme.js";
import { ink, PEN, snapped } from "./strokes.js";

const KEY_STEP = 0.04; // of the area's side
const MIN_MOVE = 0.006;
const KEPT = 50; // changes that can be undone: each may keep a picture of the area's size
const EMPTY = { strokes: [], image: null, picture: null };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Pad {
  #canvas = byId("pad");
  #content = EMPTY;
  #history = [];
  #changes = 0; // so far: an image that is read slowly takes the place of nothing newer
  #drawing = null; // the stroke under the pen
  #pointer = null; // the id of the one that draws it; null for the keyboard
  #box = null; // where the area was when it was put down: a page that moves bends no stroke
  #cursor = null; // of the keyboard: where it is, and whether it draws
  #onChange;
  #onEnd;

  /**
   * @param {(isFinal: boolean) => void} onChange called with each change; not final while somebody draws
   * @param {() => void} onEnd called when the pen is lifted
   */
  constructor(onChange, onEnd) {
    [this.#onChange, this.#onEnd] = [onChange, onEnd];
    const canvas = this.#canvas;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"])
      canvas.addEventListener(end, ({ pointerId }) => pointerId === this.#pointer && this.#lift());
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.#showCursor());
    canvas.addEventListener("blur", () => this.#hideCursor());
    byId("undo").addEventListener("click", () => this.undo());
    byId("clear").addEventListener("click", () => this.clear());
    onScheme(() => this.#paint());
  }

  /** The strokes, if nothing else is on the pad. */
  get strokes() {
    return this.#content.strokes;
  }

  /** The image's file, if one is on the pad. */
  get image() {
    return this.#content.image;
  }

  get isEmpty() {
    return !this.#content.image && !this.#content.strokes.length;
  }

  /** Show these strokes. */
  setStrokes(strokes) {
    this.#replace({ ...EMPTY, strokes }, true);
  }

  /** Show an image; formats that the browser cannot show are sent to the service all the same. */
  async setImage(file) {
    const change = ++this.#changes;
    const picture = await fitted(file, this.#canvas.width);
    if (change === this.#changes) this.#replace({ ...EMPTY, image: file, picture }, true);
  }

  undo() {
    if (!this.#history.length) return;
    this.#drawing = null;
    this.#content = this.#history.pop();
    this.#changed(true);
  }

  clear() {
    if (!this.isEmpty) this.#replace(EMPTY, true);
  }

  #replace(content, isFinal, drawing = null) {
    this.#drawing = drawing;
    this.#history = [...this.#history, this.#content].slice(-KEPT);
    this.#content = content;
    this.#changed(isFinal);
  }

  #changed(isFinal) {
    this.#changes++;
    enable(byId("undo"), this.#history.length);
    enable(byId("clear"), !this.isEmpty);
    byId("pad-hint").hidden = !this.isEmpty;
    this.#paint();
    this.#onChange(isFinal);
  }

  #down(event) {
    if (event.button !== 0 || (this.#drawing && this.#pointer !== null)) return; // a second finger, or a palm
    this.#hideCursor();
    this.#canvas.setPointerCapture(event.pointerId);
    this.#box = this.#canvas.getBoundingClientRect();
    this.#begin(this.#place(event), event.pointerId);
  }

  #begin(point, pointer = null) {
    this.#pointer = pointer;
    const stroke = [snapped(point)];
    this.#replace({ ...EMPTY, strokes: [...this.#content.strokes, stroke] }, false, stroke);
  }

  #move(event) {
    if (!this.#drawing || event.pointerId !== this.#pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    this.#extend((events.length ? events : [event]).map((each) => this.#place(each)));
  }

  #extend(points) {
    const before = this.#drawing.length;
    for (const point of points.map(snapped)) {
      const [x, y] = this.#drawing.at(-1);
      if (Math.hypot(point[0] - x, point[1] - y) >= MIN_MOVE) this.#drawing.push(point);
    }
    if (this.#drawing.length > before) this.#changed(false);
  }

  #lift() {
    if (!this.#drawing) return;
    this.#drawing = null;
    this.#onEnd();
  }

  #place({ clientX, clientY }) {
    const { left, top, width, height } = this.#box;
    return [(clientX - left) / width, (clientY - top) / height];
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return; // the browser's own, such as Alt and an arrow
    const arrow = ARROWS[event.key];
    if (arrow) this.#walk(arrow);
    else if (event.key === " ") event.repeat || this.#toggle();
    else if (event.key === "Backspace") this.undo();
    else if (event.key === "Delete") this.clear();
    else return;
    event.preventDefault();
  }

  #walk([right, down]) {
    const [x, y] = (this.#cursor ??= [0.5, 0.5]);
    const within = (at) => Math.min(1 - PEN / 2, Math.max(PEN / 2, at));
    this.#cursor = [within(x + right * KEY_STEP), within(y + down * KEY_STEP)];
    if (this.#drawing) this.#extend([this.#cursor]);
    else this.#paint();
  }

  #toggle() {
    this.#cursor ??= [0.5, 0.5];
    if (this.#drawing) this.#lift();
    else this.#begin(this.#cursor);
  }

  #showCursor() {
    this.#cursor ??= [0.5, 0.5];
    this.#paint();
  }

  #hideCursor() {
    if (!this.#cursor) return;
    this.#lift();
    this.#cursor = null;
    this.#paint();
  }

  #paint() {
    const [canvas, drawing] = [this.#canvas, this.#canvas.getContext("2d")];
    const side = canvas.width;
    const style = getComputedStyle(canvas);
    drawing.clearRect(0, 0, side, side);
    const { picture, image, strokes } = this.#content;
    if (picture) drawing.drawImage(picture, 0, 0);
    else if (image) write(drawing, image.name ?? "", side, style);
    ink(drawing, strokes, { side, color: style.color });
    if (this.#cursor) this.#paintCursor(drawing, side, style);
  }

  #paintCursor(drawing, side, style) {
    const [x, y] = this.#cursor;
    drawing.beginPath();
    drawing.arc(x * side, y * side, (PEN * side) / 2, 0, 2 * Math.PI);
    drawing.lineWidth = 4;
    drawing.strokeStyle = style.getPropertyValue("--mark");
    drawing.stroke();
  }
}

function write(drawing, text, side, style) {
  drawing.fillStyle = style.color;
  drawing.font = `${side / 20}px ${style.fontFamily}`;
  drawing.textAlign = "center";
  drawing.fillText(text, side / 2, side / 2, side * 0.9);
}
