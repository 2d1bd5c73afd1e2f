// The view that classifies many files: progress, a table, a confusion matrix, a CSV file.

import { showConfusion } from "./confusion.js";
import { toCsv } from "./csv.js";
import { byId } from "./dom.js";
import { dropped } from "./folders.js";
import { labelOf } from "./labels.js";
import { sentence } from "./notices.js";
import { save } from "./picture.js";
import { scoreAll } from "./scoring.js";
import { Table } from "./table.js";
import { ServiceError } from "./transport.js";

const RENDER_MS = 300;

export class Score {
  #table = new Table();
  #rows = [];
  #running = null;

  constructor() {
    for (const id of ["score-files", "score-folder"]) {
      const input = byId(id);
      byId(`${id}-button`).addEventListener("click", () => input.click());
      input.addEventListener("change", () => {
        this.start([...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
        input.value = "";
      });
    }
    byId("score-stop").addEventListener("click", () => this.#running?.abort());
    byId("score-csv").addEventListener("click", () => save(this.#csv(), `${this.model.name}-scores.csv`));
    const area = byId("score");
    area.addEventListener("dragover", (event) => event.preventDefault());
    area.addEventListener("drop", async (event) => {
      event.preventDefault();
      this.start(await dropped(event.dataTransfer));
    });
  }

  /** Score with this model from now on. */
  setModel(model) {
    this.model = model;
    this.#running?.abort();
    byId("score-model").textContent =
      model.manifest.views === 2
        ? `${model.name} takes pairs: consecutive files by name, the left view first.`
        : `${model.name} classifies them.`;
  }

  /** Score files, [{file, path}]. */
  async start(found) {
    const items = this.#items(found);
    if (!items) return;
    this.#running?.abort();
    const controller = (this.#running = new AbortController());
    this.#rows = [];
    byId("score-results").hidden = byId("score-stop").hidden = false;
    byId("score-progress").max = items.length;
    const timer = setInterval(() => this.#render(items.length), RENDER_MS);
    try {
      await scoreAll(items, this.model, (item, outcome) => this.#rows.push(this.#row(item, outcome)), controller.signal);
    } catch (error) {
      if (error instanceof ServiceError) byId("score-said").textContent = sentence(error);
      else if (!controller.signal.aborted) throw error;
    } finally {
      clearInterval(timer);
      byId("score-stop").hidden = true;
      this.#render(items.length);
    }
  }

  #items(found) {
    const views = this.model.manifest.views;
    const sorted = found.sort((a, b) => a.path.localeCompare(b.path, undefined, { numeric: true }));
    if (!sorted.length) return null;
    if (sorted.length % views) {
      byId("score-said").textContent = `${this.model.name} takes pairs; got ${sorted.length} files.`;
      return null;
    }
    const items = [];
    for (let start = 0; start < sorted.length; start += views) {
      const group = sorted.slice(start, start + views);
      items.push({ name: group.map(({ path }) => path).join(", "), path: group[0].path, files: group.map(({ file }) => file) });
    }
    return items;
  }

  #row({ name, path, files }, { result, error }) {
    const truth = labelOf(path, this.model.manifest.class_names);
    if (error) return { name, files, truth, error };
    const label = result.labels.join(" + ");
    return { name, files, truth, label, probability: result.classes[0].probability, confident: result.confident };
  }

  #render(total) {
    const rows = this.#rows;
    byId("score-progress").value = rows.length;
    const judged = rows.filter(({ truth, error }) => truth !== null && !error);
    const right = judged.filter(({ truth, label }) => truth === label).length;
    const doubtful = rows.filter(({ confident }) => confident === false).length;
    const unread = rows.filter(({ error }) => error).length;
    const said = [`${rows.length} of ${total} files`];
    if (judged.length) said.push(`${right} of ${judged.length} right (${((100 * right) / judged.length).toFixed(1)} %)`);
    said.push(`${doubtful} doubtful`);
    if (unread) said.push(`${unread} not readable`);
    byId("score-said").textContent = said.join(" · ");
    this.#table.show(rows);
    showConfusion(rows, this.model.manifest.class_names);
  }

  #csv() {
    const head = ["file", "label", "probability", "confident", "truth", "error"];
    const rows = this.#rows.map(({ name, label, probability, confident, truth, error }) => [
      name,
      label,
      probability,
      confident,
      truth,
      error,
    ]);
    return toCsv([head, ...rows]);
  }
}
