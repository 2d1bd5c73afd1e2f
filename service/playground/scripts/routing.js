// The iterations of routing, played: where agreement comes from, and what it does to the classes.

import * as api from "./api.js";
import { byId, element } from "./dom.js";
import { classesOf, typesOf } from "./explained.js";
import { drawHeat, largest } from "./heat.js";
import { drawHistogram } from "./histogram.js";
import { Latest } from "./latest.js";
import { fromBase64 } from "./picture.js";
import { Pending } from "./pending.js";
import { Player } from "./player.js";
import { onScheme } from "./scheme.js";
import { ServiceError } from "./transport.js";

const MOST = 5; // bars that are shown
const CLASSES = "classes"; // among the layers

export class Routing {
  #asking = new Latest();
  #files = null;
  #asked = null; // the files whose explanation is there, or on its way
  #answer = null;
  #shown = null; // of the answer: its classes, or the types of a layer
  #iteration = 0;
  #player = new Player();
  #pending = new Pending(byId("explain-body"));

  constructor() {
    byId("explain").addEventListener("toggle", () => this.#look());
    byId("explain-play").addEventListener("click", () => this.#play());
    byId("explain-layer").addEventListener("change", () => this.#show());
    byId("explain-class").addEventListener("change", () => this.#paint());
    onScheme(() => this.#paint());
    byId("explain-steps").addEventListener("change", (event) => {
      this.#player.stop();
      this.#step(Number(event.target.value));
    });
  }

  /** Explain this model's answers; models without the graph get no panel. */
  setModel(model) {
    this.model = model;
    this.clear();
  }

  /** Nothing to explain. */
  clear() {
    this.#files = null;
    this.#asking.cancel();
    this.#player.stop();
    this.#pending.end();
    byId("explain").hidden = byId("explain-body").hidden = true;
  }

  /** What is shown, or asked for, explains an earlier drawing; the next one is not finished. */
  outdate() {
    this.#files = null; // else they would be explained when the panel is opened
    this.#asking.cancel();
    this.#player.stop();
    this.#pending.begin();
  }

  /** Explain the answer to these files, once somebody opens the panel. */
  show(files) {
    this.#player.stop();
    this.#asking.cancel();
    this.#files = files;
    this.#asked = this.#answer = null;
    byId("explain").hidden = false;
    if (!byId("explain").open) byId("explain-body").hidden = true; // else it is dimmed: the page does not jump
    this.#look();
  }

  #look() {
    if (!byId("explain").open || !this.#files || this.#asked === this.#files) return;
    this.#asked = this.#files;
    this.#pending.begin();
    this.#asking.ask(async (signal) => {
      const { name, version } = this.model;
      try {
        await this.#take(await api.explain(this.#files, { model: name, version }, signal), signal);
      } catch (error) {
        if (!signal.aborted) this.#asked = null; // else it is another question's
        if (!(error instanceof ServiceError) || error.status === 404) throw error; // the version is gone
        byId("explain-note").textContent = error.message; // such as that the bundle has no graph
        byId("explain-body").hidden = true;
        this.#pending.end();
      }
    }, true);
  }

  async #take(answer, signal) {
    const input = await fromBase64(answer.model_input);
    if (signal.aborted) return;
    [this.#answer, this.input] = [answer, input];
    this.#pending.end();
    byId("explain-body").hidden = false;
    byId("explain-note").textContent =
      answer.routing === "em"
        ? "Each part votes with a whole matrix. In each iteration, a class keeps the votes that lie close together, and those votes are assigned to it."
        : "At first, every part of the image votes for every class alike. In each iteration, votes that agree with a class count more there.";
    byId("explain-steps").replaceChildren(...Array.from({ length: answer.iterations }, (_, index) => step(index)));
    this.#iteration = answer.iterations - 1;
    showLayers(answer.layers ?? []);
    this.#show();
  }

  /** The chosen layer. */
  #show() {
    const answer = this.#answer;
    if (!answer) return;
    const layer = byId("explain-layer").value;
    const isClasses = layer === CLASSES;
    this.#shown = isClasses ? classesOf(answer) : typesOf(answer.layers.find(({ name }) => name === layer));
    const options = this.#shown.rows.map(({ label }) => element("option", { value: label }, label));
    byId("explain-class").replaceChildren(...options);
    byId("explain-of").textContent = isClasses ? "Agreement with" : "Capsules of";
    byId("explain-for").textContent = isClasses ? "votes for the class" : "active capsules";
    byId("explain-votes").hidden = !this.#shown.edges;
    byId("explain-against").hidden = answer.routing === "em";
    byId("explain-bars").classList.toggle("words", this.#shown.rows.some(({ label }) => label.length > 3));
    this.#step(this.#iteration);
  }

  #play() {
    if (this.#answer) this.#player.play(this.#answer.iterations, (iteration) => this.#step(iteration));
  }

  #step(iteration) {
    this.#iteration = iteration;
    byId("explain-steps").querySelectorAll("input")[iteration].checked = true;
    this.#paint();
  }

  #paint() {
    if (!this.#answer) return;
    const [{ grid, entropy, edges, rows }, at] = [this.#shown, this.#iteration];
    const one = rows.find(({ label }) => label === byId("explain-class").value) ?? rows[0];
    const scale = { full: largest(rows.map(({ heat }) => heat)), views: this.model.manifest.views };
    drawHeat(byId("explain-heat"), this.input, grid, one.heat[at], scale);
    const isClasses = byId("explain-layer").value === CLASSES;
    const what = isClasses ? `Where the agreement with ${one.label} comes from` : `Where capsules of ${one.label} are active`;
    byId("explain-heat").setAttribute("aria-label", `${what}, iteration ${at + 1}`);
    const axis = isClasses ? "distance of the votes" : "mean distance of the votes for a capsule";
    if (edges) drawHistogram(byId("explain-votes"), one.distances[at], { edges, full: largest(one.distances), axis });
    byId("explain-numbers").textContent = numbers(this.#answer.routing, entropy[at], one, at);
    byId("explain-bars").replaceChildren(...rows.slice(0, MOST).map((each) => bar(each, at)));
  }
}

/** The layers to choose from; the chosen one stays if there is such a layer. */
function showLayers(layers) {
  const select = byId("explain-layer");
  const before = select.value;
  const options = layers.map(({ name, grid }, index) =>
    element("option", { value: name }, `Capsule layer ${index + 1}, ${grid.row_centers.length} × ${grid.column_centers.length}`),
  );
  select.replaceChildren(element("option", { value: CLASSES }, "Classes"), ...options.reverse());
  select.value = layers.some(({ name }) => name === before) ? before : CLASSES;
  select.parentElement.hidden = !layers.length;
}

function numbers(routing, entropy, one, iteration) {
  const said = [`Entropy of the ${routing === "em" ? "assignments" : "couplings"}: ${entropy.toFixed(4)} of 1`];
  if (one.logit_change)
    said.push(`logits change by ${one.logit_change[iteration].toFixed(3)} on average, ${one.largest_logit_change[iteration].toFixed(2)} at most`);
  if (!one.probabilities) said.push("bars: mean activation");
  return `${said.join("; ")}.`;
}

function step(index) {
  const input = element("input", { type: "radio", name: "iteration", value: index });
  return element("label", { class: "object" }, input, `Iteration ${index + 1}`);
}

function bar({ label, values }, iteration) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${100 * values[iteration]}%`;
  const value = element("span", { class: "value" }, values[iteration].toFixed(2));
  return element("div", { class: "bar" }, element("span", { class: "name" }, label), element("span", { class: "track" }, fill), value);
}
