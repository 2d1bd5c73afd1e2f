// A pair of views for stereo models: a toy to turn, from strips of rendered pictures, or two files.

import { byId, element } from "./dom.js";
import { fitted, toFile } from "./picture.js";
import { request } from "./transport.js";

const TOYS = ["animal", "human", "airplane", "truck", "car"];
const [AZIMUTHS, AZIMUTH_STEP] = [18, 20]; // positions, degrees
const ELEVATIONS = [35, 50, 65]; // degrees
const SIDE = 96; // pixels of a view
const DRAG_PIXELS = 18; // of the pointer for one position

export class Pair {
  #strips = new Map(); // by toy
  #toy = TOYS[3];
  #own = null; // files of the user
  #onChange;

  /**
   * @param {(isFinal: boolean) => void} onChange called with each change; not final while somebody turns the toy
   * @param {() => void} onEnd called when it rests
   */
  constructor(onChange, onEnd) {
    this.#onChange = onChange;
    for (const name of ["azimuth", "elevation"]) {
      byId(name).addEventListener("input", () => this.#turned(false));
      byId(name).addEventListener("change", onEnd);
    }
    this.#dragging(document.querySelector("#pair .views"), onEnd);
  }

  get isEmpty() {
    return !this.#own && !this.#strips.size;
  }

  /** The left and the right view as files. */
  async files() {
    return this.#own ?? Promise.all([byId("left"), byId("right")].map(toFile));
  }

  /** Where the toy stands, for a link; null for the user's own files. */
  get position() {
    return this.#own ? null : { toy: this.#toy, azimuth: Number(byId("azimuth").value), elevation: Number(byId("elevation").value) };
  }

  /** Turn a toy as in a link. */
  setPosition({ toy, azimuth, elevation }) {
    if (!this.#strips.has(toy)) return;
    byId("azimuth").value = azimuth;
    byId("elevation").value = elevation;
    this.#choose(toy);
  }

  /** Load the toys and show one. */
  async start() {
    if (this.#strips.size) return;
    const bitmaps = await Promise.all(TOYS.map(load));
    TOYS.forEach((toy, index) => this.#strips.set(toy, bitmaps[index]));
    const legend = byId("toys").querySelector("legend");
    byId("toys").replaceChildren(legend, ...TOYS.map((toy) => this.#choice(toy)));
    if (!this.#own) this.#choose(this.#toy);
  }

  /** Show two files of the user, the left view first. */
  async setFiles(files) {
    const own = (this.#own = files.slice(0, 2));
    const toy = byId("toys").querySelector(":checked");
    if (toy) toy.checked = false; // it is no longer shown
    const pictures = await Promise.all(own.map((file) => fitted(file, SIDE)));
    if (own !== this.#own) return; // something else was chosen meanwhile
    for (const [index, id] of ["left", "right"].entries()) {
      const drawing = byId(id).getContext("2d");
      drawing.clearRect(0, 0, SIDE, SIDE);
      if (pictures[index]) drawing.drawImage(pictures[index], 0, 0);
    }
    this.#onChange(true);
  }

  #choice(toy) {
    const canvas = element("canvas", { width: SIDE, height: SIDE });
    canvas.getContext("2d").drawImage(this.#strips.get(toy), 3 * SIDE, 2 * SIDE, SIDE, SIDE, 0, 0, SIDE, SIDE);
    const input = element("input", { type: "radio", name: "toy", value: toy });
    input.addEventListener("change", () => this.#choose(toy));
    return element("label", { class: "toy" }, input, canvas, toy);
  }

  #choose(toy) {
    this.#toy = toy;
    this.#turned(true);
  }

  #turned(isFinal) {
    if (!this.#strips.size) return; // they may not be there yet
    this.#own = null;
    byId("toys").querySelector(`[value="${this.#toy}"]`).checked = true;
    const [column, row] = [Number(byId("azimuth").value), Number(byId("elevation").value)];
    byId("azimuth-value").textContent = `${column * AZIMUTH_STEP}°`;
    byId("elevation-value").textContent = `${ELEVATIONS[row]}°`;
    byId("azimuth").setAttribute("aria-valuetext", `${column * AZIMUTH_STEP} degrees`);
    byId("elevation").setAttribute("aria-valuetext", `${ELEVATIONS[row]} degrees`);
    for (const [view, id] of ["left", "right"].entries()) {
      const place = [column * SIDE, (2 * row + view) * SIDE, SIDE, SIDE];
      byId(id).getContext("2d").drawImage(this.#strips.get(this.#toy), ...place, 0, 0, SIDE, SIDE);
    }
    this.#onChange(isFinal);
  }

  #dragging(views, onEnd) {
    let from = null; // where the pointer that turns the toy was put down
    views.addEventListener("pointerdown", ({ pointerId, clientX, clientY }) => {
      if (from) return; // a second finger, or a palm
      views.setPointerCapture(pointerId);
      from = { pointerId, x: clientX, y: clientY, azimuth: Number(byId("azimuth").value), elevation: Number(byId("elevation").value) };
    });
    views.addEventListener("pointermove", (event) => {
      if (event.pointerId !== from?.pointerId) return;
      const across = Math.round((event.clientX - from.x) / DRAG_PIXELS);
      const down = Math.round((event.clientY - from.y) / (2 * DRAG_PIXELS));
      const azimuth = (((from.azimuth - across) % AZIMUTHS) + AZIMUTHS) % AZIMUTHS;
      const elevation = Math.min(ELEVATIONS.length - 1, Math.max(0, from.elevation + down));
      if (Number(byId("azimuth").value) === azimuth && Number(byId("elevation").value) === elevation) return;
      byId("azimuth").value = azimuth;
      byId("elevation").value = elevation;
      this.#turned(false);
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"])
      views.addEventListener(end, ({ pointerId }) => {
        if (pointerId !== from?.pointerId) return;
        from = null;
        onEnd();
      });
  }
}

async function load(toy) {
  return createImageBitmap(await request(`playground/samples/${toy}.webp`, { tellsSlow: false }, "blob"));
}
