// The iterations of routing, played: where agreement comes from, and what it does to the classes.

import * as api from "./api.js";
import { byId, element } from "./dom.js";
import { drawHeat, largest } from "./heat.js";
import { drawHistogram } from "./histogram.js";
import { Latest } from "./latest.js";
import { fromBase64 } from "./picture.js";
import { ServiceError } from "./transport.js";

const PLAY_MS = 900; // of each iteration
const MOST = 5; // classes that are shown

export class Routing {
  #asking = new Latest();
  #files = null;
  #answer = null;
  #iteration = 0;
  #timer = 0;

  constructor() {
    byId("explain").addEventListener("toggle", () => this.#look());
    byId("explain-play").addEventListener("click", () => this.#play());
    byId("explain-class").addEventListener("change", () => this.#paint());
    byId("explain-steps").addEventListener("change", (event) => this.#step(Number(event.target.value)));
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
    this.#stop();
    byId("explain").hidden = true;
  }

  /** Explain the answer to these files, once somebody opens the panel. */
  show(files) {
    this.#files = files;
    this.#answer = null;
    byId("explain").hidden = false;
    this.#look();
  }

  #look() {
    if (!byId("explain").open || !this.#files || this.#answer) return;
    this.#asking.ask(async (signal) => {
      const { name, version } = this.model;
      try {
        await this.#take(await api.explain(this.#files, { model: name, version }, signal));
      } catch (error) {
        if (!(error instanceof ServiceError)) throw error;
        byId("explain-note").textContent = error.message; // such as the command that adds the graph
        byId("explain-body").hidden = true;
      }
    }, true);
  }

  async #take(answer) {
    this.input = await fromBase64(answer.model_input);
    this.#answer = answer;
    byId("explain-body").hidden = false;
    byId("explain-note").textContent =
      answer.routing === "em"
        ? "Each part votes with a whole matrix. In each iteration, a class keeps the votes that lie close together, and those votes are assigned to it."
        : "At first, every part of the image votes for every class alike. In each iteration, votes that agree with a class count more there.";
    const options = answer.classes.map(({ label }) => element("option", { value: label }, label));
    byId("explain-class").replaceChildren(...options);
    byId("explain-steps").replaceChildren(...Array.from({ length: answer.iterations }, (_, index) => step(index)));
    byId("explain-votes").hidden = answer.routing !== "em";
    byId("explain-against").hidden = answer.routing === "em";
    byId("explain-bars").classList.toggle("words", answer.classes.some(({ label }) => label.length > 3));
    this.#step(answer.iterations - 1);
  }

  #play() {
    if (!this.#answer) return;
    this.#stop();
    this.#step(0);
    this.#timer = setInterval(() => {
      this.#step(this.#iteration + 1);
      if (this.#iteration === this.#answer.iterations - 1) this.#stop();
    }, PLAY_MS);
  }

  #stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
  }

  #step(iteration) {
    this.#iteration = iteration;
    byId("explain-steps").querySelectorAll("input")[iteration].checked = true;
    this.#paint();
  }

  #paint() {
    const answer = this.#answer;
    if (!answer) return;
    const one = answer.classes.find(({ label }) => label === byId("explain-class").value) ?? answer.classes[0];
    const scale = { full: largest(answer.classes.map(({ heat }) => heat)), views: this.model.manifest.views };
    drawHeat(byId("explain-heat"), this.input, answer.grid, one.heat[this.#iteration], scale);
    byId("explain-heat").setAttribute("aria-label", `Where the agreement with ${one.label} comes from, iteration ${this.#iteration + 1}`);
    if (one.distances) drawHistogram(byId("explain-votes"), one.distances[this.#iteration], answer.distance_edges, largest(one.distances));
    byId("explain-numbers").textContent = numbers(answer, one, this.#iteration);
    byId("explain-bars").replaceChildren(...answer.classes.slice(0, MOST).map((each) => bar(each, this.#iteration)));
  }
}

function numbers({ entropy }, one, iteration) {
  const said = [`Entropy of the couplings: ${entropy[iteration].toFixed(4)} of 1`];
  if (one.logit_change)
    said.push(`logits change by ${one.logit_change[iteration].toFixed(3)} on average, ${one.largest_logit_change[iteration].toFixed(2)} at most`);
  return `${said.join("; ")}.`;
}

function step(index) {
  const input = element("input", { type: "radio", name: "iteration", value: index });
  return element("label", { class: "object" }, input, `Iteration ${index + 1}`);
}

function bar({ label, probabilities }, iteration) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${100 * probabilities[iteration]}%`;
  const value = element("span", { class: "value" }, probabilities[iteration].toFixed(2));
  return element("div", { class: "bar" }, element("span", { class: "name" }, label), element("span", { class: "track" }, fill), value);
}
