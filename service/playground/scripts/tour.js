// A guided tour in five steps, each with a figure on live answers of the service.

import * as api from "./api.js";
import { byId, element, enable, isEnabled } from "./dom.js";
import { drawHeat, largest } from "./heat.js";
import { Latest } from "./latest.js";
import { moved } from "./moved_digit.js";
import { sentence } from "./notices.js";
import { Pending } from "./pending.js";
import { fromBase64, show } from "./picture.js";
import { Player } from "./player.js";
import { digitStrokes } from "./samples.js";
import { onScheme } from "./scheme.js";
import { drawPicture, Sweeps } from "./sweeps.js";
import { poseBars, slider, squashCurve, unsquash } from "./tour_figures.js";
import { ServiceError } from "./transport.js";

const DIGIT = 4;
const TURNS = { min: -30, max: 30, step: 5, value: 0, unit: "°" };
const SHIFTS = { min: -3, max: 3, step: 1, value: 0, unit: " px" };

const STEPS = [
  { title: "A capsule is a group of numbers", figure: numbersFigure },
  { title: "Its length says whether, its direction says how", figure: motionFigure },
  { title: "Squashing turns a length into a probability", figure: squashFigure },
  { title: "Parts vote for wholes", figure: votesFigure },
  { title: "Votes that agree count more", figure: agreementFigure },
];

export class Tour {
  #step; // from 0
  #onStep;
  #live = null; // what all figures share
  #player = new Player(); // of the figure that is shown, if it plays
  #paint = null; // of the figure that is shown, if it has the page's colors
  #turn = 0;
  #pending = new Pending(...document.querySelectorAll("#tour-text, #tour-figure"));

  /**
   * @param {() => Promise<object>} findModel a model of single digits with a decoder, as the chooser gives it
   * @param {(step: number) => void} onStep called with the step that is shown, from 1
   * @param {number} step to begin with, from 1; the first or the last one, if there is no such step
   */
  constructor(findModel, onStep, step) {
    this.findModel = findModel;
    this.#onStep = onStep;
    this.#step = within(Math.trunc(step) - 1);
    this.#head();
    onScheme(() => this.#paint?.());
    for (const [id, steps] of [["tour-next", 1], ["tour-back", -1]])
      byId(id).addEventListener("click", () => isEnabled(byId(id)) && this.#go(this.#step + steps));
  }

  /** The step that is shown, from 1. */
  get step() {
    return this.#step + 1;
  }

  /** Begin, or go on. */
  async start() {
    const turn = ++this.#turn;
    const model = await this.findModel();
    if (turn !== this.#turn) return;
    if (!model) {
      byId("tour-text").textContent = "The tour needs a model of single digits, such as capsnet-digits; this service has none.";
      enable(byId("tour-next"), false);
      return;
    }
    await this.#go(this.#step);
  }

  /** Stop playing, also a figure that has not come yet: the tour is no longer shown. */
  stop() {
    this.#turn++;
    this.#player.stop();
  }

  async #go(step) {
    this.stop();
    const turn = this.#turn;
    this.#step = within(step);
    this.#onStep(this.step);
    enable(byId("tour-back"), this.#step > 0);
    enable(byId("tour-next"), this.#step < STEPS.length - 1);
    this.#pending.begin();
    const { text, box, paint, onShow } = await this.#make(STEPS[this.#step].figure);
    if (turn !== this.#turn) return;
    this.#pending.end();
    this.#head();
    byId("tour-text").replaceChildren(...text.map((one) => element("p", {}, one)));
    byId("tour-figure").replaceChildren(...box);
    this.#paint = paint;
    paint?.();
    onShow?.();
    byId("tour-title").scrollIntoView({ block: "nearest" });
  }

  #head() {
    byId("tour-title").textContent = STEPS[this.#step].title;
    byId("tour-place").textContent = `Step ${this.step} of ${STEPS.length}`;
  }

  /** A figure; if the service refuses it, what the service says: it is asked again when one comes back. */
  async #make(figure) {
    try {
      this.#live ??= await gather(await this.findModel());
      return await figure(this.#live, this.#player);
    } catch (error) {
      if (!(error instanceof ServiceError)) reportError(error);
      this.#live = null; // of a model that may be gone
      return { text: [sentence(error)], box: [] };
    }
  }
}

const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const within = (step) => Math.min(STEPS.length - 1, Math.max(0, step)) || 0;

async function gather(model) {
  const strokes = (await digitStrokes())[DIGIT];
  const side = model.manifest.preprocessing.width;
  const query = { model: model.name, version: model.version };
  const file = await moved(strokes, side, {}).convertToBlob({ type: "image/png" });
  const answer = await api.classify([file], { ...query, model_input: true });
  const [result] = answer.results;
  return { model, strokes, side, query, file, result, input: await fromBase64(result.model_input) };
}

async function numbersFigure({ model, result, input }) {
  const best = result.classes[0];
  const sweeps = new Sweeps(model, best.label, best.pose);
  const moves = best.pose.map(() => 0);
  const [bars, seen, decoded] = [poseBars(best.pose.length), picture("What the network sees"), picture("Drawn from the numbers")];
  show(seen, input);
  drawPicture(decoded, await sweeps.picture(moves), 0);
  bars.set(best.pose);
  const dimension = await liveliest(sweeps, moves);
  const strip = await sweeps.ahead(dimension, moves);
  const { steps } = sweeps.range;
  const move = slider(`Number ${dimension}`, { min: -steps, max: steps, value: 0, unit: " steps" }, (by) => {
    drawPicture(decoded, strip, by + steps);
    bars.set(sweeps.moved(moves.map((_, index) => (index === dimension ? by : 0))));
  });
  return {
    text: [
      `The network has seen this ${best.label}. For each class it has a capsule: a small group of numbers that works as one. These are the ${best.pose.length} numbers of the capsule for “${best.label}”.`,
      "A second network draws the digit again from these numbers alone. Move one of them: how the digit is written changes, and it stays the same digit.",
    ],
    box: [figure(seen, "what the network sees"), bars.box, element("div", { class: "tour-side" }, figure(decoded, "drawn from the numbers"), move)],
  };
}

async function motionFigure({ strokes, side, query, result }) {
  const { label, pose, probability } = result.classes[0];
  const [bars, seen] = [poseBars(pose.length), picture("The digit, moved")];
  const said = element("p", { class: "tour-said", role: "status" });
  const tell = (now) => {
    bars.set(now.pose);
    const [before, after] = [probability, now.probability].map((one) => one.toFixed(2));
    said.textContent = `Length ${after} (at rest ${before}); direction turned by ${angle(pose, now.pose)}°`;
  };
  const [motion, asking] = [{ degrees: 0, right: 0 }, new Latest()];
  const look = async (signal) => {
    const canvas = moved(strokes, side, motion);
    const answer = await api.classify([await canvas.convertToBlob({ type: "image/png" })], query, signal);
    show(seen, canvas);
    tell(answer.results[0].classes.find((one) => one.label === label));
  };
  const move = (part) => {
    Object.assign(motion, part);
    asking.ask(look);
  };
  const turn = slider("Turn", TURNS, (degrees) => move({ degrees }));
  const shift = slider("Shift", SHIFTS, (right) => move({ right }));
  show(seen, moved(strokes, side, motion));
  tell(result.classes[0]);
  return {
    text: [
      `A capsule is a vector. Its length, from 0 to 1, says how sure the network is that there is a “${label}”. Its direction says how it looks.`,
      "Turn and shift the digit. The length hardly changes: it is the same digit. The numbers move along: they say where it went. This is called equivariance.",
    ],
    box: [figure(seen, "the digit, moved"), bars.box, element("div", { class: "tour-side" }, said, turn, shift)],
  };
}

async function squashFigure({ result }) {
  const [best, second] = result.classes;
  const curve = squashCurve(result.classes);
  return {
    text: [
      "Before its length can be a probability, a capsule is squashed: short vectors shrink to almost nothing, long ones end just below 1. The direction stays.",
      `The capsule of “${best.label}” had length ${unsquash(best.probability).toFixed(2)} and has ${best.probability.toFixed(2)} now; that of “${second.label}” had ${unsquash(second.probability).toFixed(2)} and has ${second.probability.toFixed(2)}. Each class is judged on its own, so the lengths need not sum to 1.`,
    ],
    box: [curve.canvas],
    paint: curve.paint,
  };
}

async function votesFigure(live) {
  const answer = (live.answer ??= await api.explain([live.file], live.query));
  const shown = answer.classes.slice(0, 3);
  const scale = { full: largest(shown.map(({ heat }) => heat[0])), views: 1 };
  const maps = shown.map(({ label, heat }) => {
    const canvas = picture(`Votes for ${label}`);
    drawHeat(canvas, live.input, answer.grid, heat[0], scale);
    return figure(canvas, `for ${label}`);
  });
  return {
    text: [
      `Below the classes are many small capsules, each of which sees a part of the image: a stroke, a bend. Each part predicts the whole: “if this is a ${shown[0].label}, then one that looks like this”. These predictions are votes.`,
      `In the first iteration each part gives all classes the same share. Orange: votes from there point in the direction of the class's capsule. Blue: against it. “${shown[0].label}” starts with length ${shown[0].probabilities[0].toFixed(2)}, “${shown[1].label}” with ${shown[1].probabilities[0].toFixed(2)}.`,
    ],
    box: maps,
  };
}

async function agreementFigure(live, player) {
  const answer = (live.answer ??= await api.explain([live.file], live.query));
  const [best, second] = answer.classes;
  const scale = { full: largest(answer.classes.map(({ heat }) => heat)), views: 1 };
  const canvases = [best, second].map(({ label }) => picture(`Votes for ${label}`));
  const said = element("p", { class: "tour-said" });
  const showIteration = (at) => {
    [best, second].forEach(({ heat }, index) => drawHeat(canvases[index], live.input, answer.grid, heat[at], scale));
    said.textContent = `Iteration ${at + 1}: ${[best, second].map(({ label, probabilities }) => `“${label}” ${probabilities[at].toFixed(2)}`).join(", ")}`;
  };
  const play = () => player.play(answer.iterations, showIteration);
  const button = element("button", { class: "button primary" }, "Play");
  button.addEventListener("click", play);
  const [first, last] = [0, answer.iterations - 1].map((one) => best.probabilities[one].toFixed(2));
  return {
    text: [
      "Votes that point where the class's capsule points agree with it, and count more there in the next iteration. The capsule moves towards them, and so on: this is routing by agreement.",
      `In ${answer.iterations} iterations “${best.label}” goes from ${first} to ${last}. That is the answer. Draw your own digit in Explore, and open “Watch the votes agree” below it.`,
    ],
    box: [...canvases.map((canvas, index) => figure(canvas, `for ${[best, second][index].label}`)), said, button],
    onShow: () => (prefersReducedMotion() ? showIteration(answer.iterations - 1) : play()),
  };
}

/** The dimension whose ends differ most. */
async function liveliest(sweeps, moves) {
  const changes = (await sweeps.ends(moves)).map((strip) => {
    const [a, b] = [0, 1].map((column) => levels(strip, column));
    return a.reduce((sum, level, index) => sum + Math.abs(level - b[index]), 0);
  });
  return changes.indexOf(Math.max(...changes));
}

function levels(strip, column) {
  const canvas = element("canvas");
  drawPicture(canvas, strip, column);
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
}

function picture(label) {
  return element("canvas", { class: "pixels", width: 28, height: 28, role: "img", "aria-label": label });
}

function figure(canvas, caption) {
  return element("figure", {}, canvas, element("figcaption", { class: "note" }, caption));
}

function angle(a, b) {
  const dot = a.reduce((sum, value, index) => sum + value * b[index], 0);
  const cosine = dot / (Math.hypot(...a) * Math.hypot(...b));
  return Math.round((Math.acos(Math.min(1, cosine)) * 180) / Math.PI);
}
