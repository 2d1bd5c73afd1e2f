// The sortable table of scored files.

import { byId, element } from "./dom.js";
import { fitted } from "./picture.js";

const SHOWN = 200; // rows; the CSV file has all
const THUMBNAIL = 40;

let reading = Promise.resolve();

const COLUMNS = {
  name: (row) => row.name,
  label: (row) => row.label ?? "",
  probability: (row) => row.probability ?? -1,
  truth: (row) => row.truth ?? "",
};

const NAMES = { name: "file", label: "answer", probability: "probability", truth: "true class" };

export class Table {
  #rows = [];
  #by = "doubt";
  #isFalling = false;

  constructor() {
    for (const button of document.querySelectorAll("#scores [data-sort]"))
      button.addEventListener("click", () => this.#sortBy(button.dataset.sort));
  }

  /** Sort the rows to come by doubt. */
  begin() {
    this.#by = "doubt";
    this.#isFalling = false;
  }

  /** Show these rows, the doubtful ones first until somebody sorts otherwise. */
  show(rows) {
    this.#rows = rows;
    this.#render();
  }

  #sortBy(column) {
    this.#isFalling = this.#by === column && !this.#isFalling;
    this.#by = column;
    this.#render();
  }

  #render() {
    const value = COLUMNS[this.#by] ?? doubt;
    const order = (a, b) => compare(value(a), value(b)) * (this.#isFalling ? -1 : 1);
    const shown = [...this.#rows].sort(order).slice(0, SHOWN);
    byId("scores-body").replaceChildren(...shown.map(line));
    byId("results-title").textContent = `Answers, ${this.#by === "doubt" ? "the doubtful ones first" : `by ${NAMES[this.#by]}`}`;
    const left = this.#rows.length - shown.length;
    byId("scores-more").textContent = left > 0 ? `${left} more in the CSV file` : "";
    for (const button of document.querySelectorAll("#scores [data-sort]")) {
      const isSorted = button.dataset.sort === this.#by;
      const direction = this.#isFalling ? "descending" : "ascending";
      button.closest("th").setAttribute("aria-sort", isSorted ? direction : "none");
    }
  }
}

/** Unreadable files first, then wrong answers, then those that are not confident, then by probability. */
function doubt(row) {
  if (row.error) return -3;
  if (row.truth !== null && row.truth !== row.label) return row.probability - 2;
  return row.confident === false ? row.probability - 1 : row.probability;
}

function line(row) {
  const canvas = (row.canvas ??= thumbnail(row.files[0]));
  const name = element("td", { class: "file" }, row.name);
  if (row.error) return element("tr", {}, element("td", {}, canvas), name, element("td", { colSpan: 3, class: "error" }, row.error));
  const isWrong = row.truth !== null && row.truth !== row.label;
  const flag = row.confident === false ? element("span", { class: "doubtful" }, "doubtful") : "";
  return element(
    "tr",
    { class: isWrong ? "wrong" : "" },
    element("td", {}, canvas),
    name,
    element("td", {}, row.blank ? "—" : row.label, isWrong ? element("span", { class: "hidden" }, " (wrong)") : ""),
    element("td", { class: "number" }, row.probability.toFixed(3), " ", flag),
    element("td", {}, row.truth ?? ""),
  );
}

/** A canvas that shows the file, if there is one, once it is read: one after the other, as a photograph takes much memory. */
function thumbnail(file) {
  const canvas = element("canvas", { width: THUMBNAIL, height: THUMBNAIL, "aria-hidden": "true" });
  if (file) reading = reading.then(() => draw(canvas, file));
  return canvas;
}

async function draw(canvas, file) {
  const picture = await fitted(file, THUMBNAIL);
  if (picture) canvas.getContext("2d").drawImage(picture, 0, 0);
}

const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
