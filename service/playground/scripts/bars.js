// Class probabilities as bars, each on its own scale from 0 to 1, with the model's threshold as a mark.

import { byId, element } from "./dom.js";

const MOST = 12; // classes that are shown; of more, the most probable ones

export class Bars {
  #group = byId("bars");
  #rows = new Map(); // by label
  #onChoose;

  /** @param {(label: string) => void} onChoose */
  constructor(onChoose) {
    this.#onChoose = onChoose;
    this.#group.setAttribute("role", "radiogroup");
    this.#group.setAttribute("aria-label", "Class probabilities; the chosen class is the capsule below");
  }

  /** Rows for the model's classes, all at 0. */
  setModel(manifest) {
    this.threshold = manifest.confidence?.min_probability;
    this.hasCapsules = Boolean(manifest.graphs.decoder); // to choose from
    this.#group.classList.toggle("words", manifest.class_names.some((name) => name.length > 3));
    this.#setRows(manifest.class_names.slice(0, MOST));
    const note = byId("bars-note");
    note.replaceChildren();
    if (this.threshold !== undefined)
      note.append(
        element("span", { class: "threshold-key" }),
        `From ${this.threshold} on, the model is confident. `,
      );
    note.append("Each class is judged on its own: the bars need not sum to 1.");
  }

  /** Show an answer's classes, [{label, probability}] by descending probability. */
  show(result) {
    const shown = result.classes.slice(0, MOST).map(({ label }) => label);
    if (shown.some((label) => !this.#rows.has(label))) this.#setRows(shown);
    const named = result.blank ? [] : result.labels;
    for (const { label, probability } of result.classes) {
      const row = this.#rows.get(label);
      if (!row) continue;
      fill(row, probability, named.includes(label));
      row.input.disabled = !this.hasCapsules;
    }
  }

  /** All at 0. */
  clear() {
    for (const row of this.#rows.values()) {
      fill(row, 0, false);
      row.value.textContent = "";
      row.input.checked = false;
      row.input.disabled = true;
    }
  }

  /** Mark the class whose capsule is shown. */
  choose(label) {
    const row = this.#rows.get(label);
    if (row) row.input.checked = true;
  }

  #setRows(labels) {
    this.#rows = new Map(labels.map((label) => [label, this.#row(label)]));
    this.#group.replaceChildren(...[...this.#rows.values()].map(({ row }) => row));
    this.clear();
  }

  #row(label) {
    const input = element("input", { type: "radio", name: "class", value: label, "aria-label": label });
    const bar = element("span", { class: "fill" });
    const track = element("span", { class: "track" }, bar);
    const value = element("span", { class: "value" });
    if (this.threshold !== undefined) {
      const mark = element("span", { class: "threshold" });
      mark.style.left = `${100 * this.threshold}%`;
      track.append(mark);
    }
    input.addEventListener("change", () => this.#onChoose(label));
    const row = element("label", { class: "bar" }, input, element("span", { class: "name" }, label), track, value);
    return { row, input, bar, value, label };
  }
}

function fill({ row, input, bar, value, label }, probability, isNamed) {
  const text = probability.toFixed(2);
  bar.style.width = `${100 * probability}%`;
  value.textContent = text;
  row.classList.toggle("named", isNamed);
  input.setAttribute("aria-label", `${label}: ${text}`);
}
