// The view in which an image is classified, taken apart and decoded while it is drawn.

import * as api from "./api.js";
import { Bars } from "./bars.js";
import { Capsule } from "./capsule.js";
import { byId } from "./dom.js";
import { takeFiles } from "./intake.js";
import { Latest } from "./latest.js";
import { dismiss, hush } from "./notices.js";
import { Pad } from "./pad.js";
import { Pair } from "./pair.js";
import { Pending } from "./pending.js";
import { Routing } from "./routing.js";
import { blank, fromBase64, show, sizeOf } from "./picture.js";
import { samplesFor, showSamples } from "./samples.js";
import { strokesToFile } from "./strokes.js";

const FIT_MARGIN = 0.2; // around a drawing for models that take the whole picture: their digits leave as much

export class Explore {
  #looking = new Latest();
  #question = null; // the latest: {isFinal}
  #answer = null; // the one that is shown, and its question
  #pending = new Pending(...document.querySelectorAll(".seen, .answer, #capsule, #explain"));
  #onGone;
  onEdit = () => {}; // called when somebody changes what is shown: the image, the model, the class, a number

  /** @param {() => Promise<boolean>} onGone called when the model is gone; whether another one has taken its place */
  constructor(onGone) {
    this.#onGone = onGone;
    this.bars = new Bars((label) => {
      this.onEdit();
      this.chooseClass(label);
    });
    this.capsule = new Capsule(
      (label) => this.bars.choose(label),
      () => this.onEdit(),
    );
    this.routing = new Routing();
    const [onChange, onEnd] = [(isFinal) => this.#changed(isFinal), () => this.#finish()];
    this.pad = new Pad(onChange, onEnd);
    this.pair = new Pair(onChange, onEnd);
    takeFiles((files) => this.take(files));
  }

  /** The input of the model: the drawing area, or a pair of views. */
  get #input() {
    return this.model?.manifest.views === 2 ? this.pair : this.pad;
  }

  /** Whether there is no image. */
  get isEmpty() {
    return this.#input.isEmpty;
  }

  /** For links and snippets: the model, and the answer to the image that is shown, once it is there, with the files sent. */
  get state() {
    const { model } = this;
    if (this.#answer?.question !== this.#question) return { model, answer: null, objects: [], chosen: 0 };
    return { model, answer: this.#answer, ...this.capsule.state };
  }

  /** Show another model and what it makes of the image that is there. */
  async setModel(model) {
    this.onEdit();
    this.model = model;
    const { manifest } = model;
    byId("draw").hidden = manifest.views === 2;
    byId("pair").hidden = manifest.views !== 2;
    showInput(manifest);
    this.bars.setModel(manifest);
    this.capsule.setModel(model);
    this.routing.setModel(model);
    this.#looking.cancel();
    this.#forget();
    if (manifest.views === 2) await this.pair.start();
    if (model !== this.model) return; // another one was chosen meanwhile
    this.look(true);
    const samples = await samplesFor(manifest).catch(() => []); // the page works without
    if (model === this.model) showSamples(byId("samples"), samples, (strokes) => this.pad.setStrokes(strokes));
  }

  /** Ask what the network makes of the image; while somebody draws, one question at a time. */
  look(isFinal) {
    if (!this.model) return;
    if (this.#input.isEmpty) {
      this.#looking.cancel();
      return this.#forget();
    }
    const question = (this.#question = { isFinal });
    byId("spoken").textContent = "";
    this.#pending.begin();
    this.#looking.ask((signal) => this.#look(question, signal), isFinal);
  }

  /** Wait until what has been asked is answered: true, or false if it got no answer or something else was asked. */
  settled() {
    const question = this.#question;
    return new Promise((resolve) => {
      const wait = () => {
        if (!question || question !== this.#question) resolve(false);
        else if (question.isFinal && this.#answer?.question === question) resolve(true);
        else setTimeout(wait, 20);
      };
      wait();
    });
  }

  /** Show files from elsewhere. */
  take(files) {
    return this.#input === this.pair ? this.pair.setFiles(files) : this.pad.setImage(files[0]);
  }

  /** Show the capsule of another class, in the place of the chosen one or of another. */
  async chooseClass(label, place) {
    const found = this.#answer?.result.classes.find((one) => one.label === label);
    if (found && this.model.manifest.graphs.decoder) await this.capsule.choose(found, place);
  }

  #changed(isFinal) {
    this.onEdit();
    if (this.#input.isEmpty) dismiss();
    this.look(isFinal);
  }

  /** The pen is lifted: what was asked last is the final question, and need not be asked again. */
  #finish() {
    const question = this.#question;
    if (!question) return this.look(true); // the last one failed
    if (question.isFinal) return;
    question.isFinal = true;
    if (this.#answer?.question === question) this.#show(this.#answer);
    else this.#looking.hurry();
  }

  async #look(question, signal) {
    try {
      await this.#answerTo(question, signal);
    } catch (error) {
      if (question !== this.#question || signal.aborted) throw error;
      this.#forget(); // the answer shown is to an earlier image
      if (error.status !== 404 || !(await this.#onGone())) throw error;
    }
  }

  async #answerTo(question, signal) {
    const { name, version, manifest } = this.model;
    const files = await this.#files();
    const several = manifest.objects_per_image > 1 && manifest.graphs.decoder;
    const query = { model: name, version, model_input: true, reconstruction: manifest.graphs.decoder && !several };
    const [answer, apart, size] = await Promise.all([
      api.classify(files, query, signal),
      several ? api.segment(files, { model: name, version }, signal) : null,
      sizeOf(files[0]), // the views of a pair have the same size
    ]);
    const [result] = answer.results;
    const [seen, objects] = await Promise.all([fromBase64(result.model_input), objectsOf(result, apart?.results[0])]);
    if (signal.aborted) return;
    hush();
    this.#show({ question, result, files, size, seen, objects });
  }

  /** All at one go: nobody can use a part of an answer before the rest of it is there. */
  #show(answer) {
    const { result, files, size, seen, objects } = (this.#answer = answer);
    const isLast = answer.question === this.#question; // nobody has drawn on
    const isFinal = isLast && answer.question.isFinal;
    this.#pending.end();
    if (!isLast) this.#pending.begin();
    show(byId("seen"), seen);
    byId("seen").classList.remove("empty");
    this.bars.show(result);
    if (objects) this.capsule.show(objects, isFinal);
    else this.capsule.clear();
    if (result.blank) this.routing.clear();
    else if (isFinal) this.routing.show(files);
    else this.routing.outdate();
    this.#say(result, size, isFinal);
  }

  #say(result, size, isFinal) {
    const names = result.labels.map((label, index) => `${label}, probability ${result.classes[index].probability.toFixed(2)}`);
    const text = result.blank ? "nothing" : `${names.join(" and ")}${result.confident === false ? ", not confident" : ""}`;
    byId("best").textContent = result.blank ? "—" : result.labels.join(" + ");
    const { height, width, views } = { ...this.model.manifest.preprocessing, views: this.model.manifest.views };
    byId("seen-note").textContent = result.blank
      ? "Nothing is to be seen here."
      : `${views === 2 ? "Two views of " : ""}${width} × ${height} pixels${seenRule(this.model.manifest, size)}`;
    byId("seen").setAttribute("aria-label", `The model's input, ${width} by ${height} pixels`);
    byId("capsule-note").textContent = capsuleNote(this.model.manifest);
    if (isFinal) byId("spoken").textContent = `It sees ${text}`;
  }

  #forget() {
    this.#question = this.#answer = null;
    this.#pending.end();
    this.bars.clear();
    this.capsule.clear();
    this.routing.clear();
    blank(byId("seen"));
    byId("seen").classList.add("empty");
    byId("seen").setAttribute("aria-label", "Nothing yet");
    byId("best").textContent = "";
    byId("seen-note").textContent = "";
    byId("spoken").textContent = "";
  }

  async #files() {
    const { pad } = this;
    if (this.#input === this.pair) return this.pair.files();
    if (pad.image) return [pad.image];
    const margin = this.model.manifest.preprocessing.placement === "digit" ? 0 : FIT_MARGIN;
    return [strokesToFile(pad.strokes, margin)];
  }
}

/** The objects of an answer, each with the picture of its capsule; null if there is nothing, or no decoder. */
async function objectsOf(result, apart) {
  const objects = apart ? apart.objects : [{ ...result.classes[0], reconstruction: result.reconstruction }];
  if (result.blank || !objects[0]?.reconstruction) return null;
  return Promise.all(objects.map(async (object) => ({ ...object, bitmap: await fromBase64(object.reconstruction) })));
}

/** Ask for a drawing, or for an image if the model does not look for a digit. */
function showInput(manifest) {
  const several = manifest.objects_per_image > 1;
  const isDrawn = several || manifest.preprocessing.placement === "digit";
  byId("draw").classList.toggle("image", !isDrawn);
  byId("draw-title").textContent = isDrawn ? "You draw" : "Your image";
  byId("pad").setAttribute("aria-label", isDrawn ? "Drawing area" : "Image area; a drawing is taken, too");
  const drawing = several ? "Draw two digits over one another" : "Draw a digit here";
  byId("pad-hint").textContent = isDrawn ? drawing : "Open or drop an image";
}

/** What was done to a picture of this size; nothing is said if the browser cannot tell the size. */
function seenRule({ preprocessing: { placement, width, height } }, size) {
  if (!size.width) return "";
  if (size.width === width && size.height === height) return ", not moved or scaled";
  if (placement === "digit") return ", the ink found, scaled and centered";
  if (placement === "centre-crop") return ", cut from the middle";
  return ", the whole picture fitted";
}

function capsuleNote({ pose_shape: shape }) {
  const size = shape.reduce((a, b) => a * b);
  const kind = shape.length > 1 ? `a matrix of ${shape.join(" × ")} numbers` : `${size} numbers`;
  return `A capsule is ${kind} that say how the object looks. Move one of them: the picture follows.`;
}
