// The view that classifies many files: progress, a table, a confusion matrix, a CSV file.

import { showConfusion } from "./confusion.js";
import { toCsv } from "./csv.js";
import { byId } from "./dom.js";
import { takeDrops } from "./drops.js";
import { dropped, isHidden } from "./folders.js";
import { labelsOf } from "./labels.js";
import { hush, sentence, tell } from "./notices.js";
import { save } from "./picture.js";
import { scoreAll } from "./scoring.js";
import { Table } from "./table.js";
import { ServiceError } from "./transport.js";

const RENDER_MS = 300;

export class Score {
  #table = new Table();
  #run = null; // the latest: {model, total, rows, stop: its AbortController, failure, isOver}
  #waiting = null; // files that were given before there was a model
  #choices = 0; // so far: a folder that is read slowly takes the place of nothing newer

  /** @param {() => Promise<boolean>} onGone called when the model is gone */
  constructor(onGone) {
    this.onGone = onGone;
    for (const id of ["score-files", "score-folder"]) {
      const input = byId(id);
      byId(`${id}-button`).addEventListener("click", () => input.click());
      input.addEventListener("change", () => {
        const files = [...input.files].filter(({ webkitRelativePath }) => !isHidden(webkitRelativePath));
        this.#choose(files.map((file) => ({ file, path: file.webkitRelativePath || file.name })));
        input.value = "";
      });
    }
    byId("score-stop").addEventListener("click", () => this.#run?.stop.abort());
    byId("score-csv").addEventListener("click", () => save(csvOf(this.#run), `${this.#run.model.name}-${this.#run.model.version}-scores.csv`));
    takeDrops(byId("score"), (transfer) => this.#choose(dropped(transfer)));
  }

  /** Score with this model from now on. */
  setModel(model) {
    this.model = model;
    this.#run?.stop.abort();
    byId("score-model").textContent =
      model.manifest.views === 2
        ? `${model.name} takes pairs: consecutive files by name, the left view first.`
        : `${model.name} classifies them.`;
    const found = this.#waiting;
    this.#waiting = null;
    if (found) this.start(found);
  }

  /** Score files, [{file, path} or {path, error}]; once a model is there. */
  async start(found) {
    if (!found.length) return this.#refuse("No files to score.");
    if (!this.model) return this.#wait(found);
    const { model } = this;
    const refused = refusal(found, model);
    if (refused) return this.#refuse(refused);
    const items = this.#items(found);
    this.#run?.stop.abort();
    this.#table.begin();
    const run = (this.#run = { model, total: items.length, rows: [], stop: new AbortController(), failure: "", isOver: false });
    byId("score-results").hidden = byId("score-stop").hidden = false;
    const timer = setInterval(() => this.#render(run), RENDER_MS);
    try {
      await scoreAll(items, model, (item, outcome) => run.rows.push(rowOf(item, outcome)), run.stop.signal);
    } catch (error) {
      if (error instanceof ServiceError) run.failure = sentence(error);
      else if (!run.stop.signal.aborted) throw error;
      if (error.status === 404) this.onGone();
    } finally {
      clearInterval(timer);
      run.stop.abort(); // the requests that are left after a failure
      run.isOver = true;
      if (run === this.#run) byId("score-stop").hidden = true;
      this.#render(run);
    }
  }

  /** Score what is chosen or dropped, once it is read, unless something newer has come. */
  async #choose(reading) {
    const choice = ++this.#choices;
    const timer = setTimeout(() => choice === this.#choices && tell("Reading the folder …"), RENDER_MS);
    const found = await reading;
    clearTimeout(timer);
    if (choice !== this.#choices) return;
    hush();
    await this.start(found);
  }

  /** Say why a choice is not scored: where its progress would be, unless another run goes on there. */
  #refuse(why) {
    if (this.#run && !this.#run.isOver) tell(why);
    else say(why);
  }

  #wait(found) {
    this.#waiting = found;
    say(`Waiting for a model: ${found.length} files`);
  }

  #items(found) {
    const views = this.model.manifest.views;
    const sorted = found.sort((a, b) => a.path.localeCompare(b.path, undefined, { numeric: true }));
    const groups = [];
    for (let start = 0; start < sorted.length; start += views) groups.push(sorted.slice(start, start + views));
    const labels = this.#labels(groups.map(([{ path }]) => path));
    return groups.map((group, index) => ({
      name: group.map(({ path }) => path).join(", "),
      files: group.map(({ file }) => file),
      truth: labels[index] ?? null,
      error: group[0].error,
    }));
  }

  /** The classes that paths name; no path names several objects of one image. */
  #labels(paths) {
    const { objects_per_image: objects, class_names: classes } = this.model.manifest;
    return objects > 1 ? [] : labelsOf(paths, classes);
  }

  #render(run) {
    if (run !== this.#run) return; // another one was started meanwhile
    const { model, total, rows } = run;
    Object.assign(byId("score-progress"), { max: total, value: rows.length });
    say(summary(run), run.isOver);
    this.#table.show(rows);
    showConfusion(rows, model.manifest.class_names);
  }
}

/** Why a model does not score these files; null if it does. */
function refusal(found, { name, manifest: { views } }) {
  const unread = found.find(({ error }) => error);
  if (unread && views > 1) return `${unread.path} ${unread.error}. Without it, nobody knows which files are a pair.`;
  return found.length % views ? `${name} takes pairs; got ${found.length} files.` : null;
}

/** Show a text, and let screen readers read it: not each step of a progress. */
function say(text, isSpoken = true) {
  byId("score-said").textContent = text;
  byId("score-spoken").textContent = isSpoken ? text : "";
}

/** A file's answer beside the class that its path names; of several objects the least probable one's. */
function rowOf({ name, files, truth }, { result, error }) {
  if (error) return { name, files, truth, error };
  const { blank, confident } = result;
  const label = blank ? "" : result.labels.join(" + ");
  return { name, files, truth, label, probability: result.classes.at(-1).probability, confident, blank };
}

function summary({ model, rows, total, failure, isOver }) {
  const judged = rows.filter(({ truth, error }) => truth !== null && !error);
  const right = judged.filter(({ truth, label }) => truth === label).length;
  const doubtful = rows.filter(({ confident }) => confident === false).length;
  const unread = rows.filter(({ error }) => error).length;
  const isStopped = isOver && !failure && rows.length < total;
  const unit = model.manifest.views === 2 ? "pairs" : "files";
  const said = [`${model.name} version ${model.version}`, `${isStopped ? "stopped after " : ""}${rows.length} of ${total} ${unit}`];
  if (judged.length) said.push(`${right} of ${judged.length} right (${((100 * right) / judged.length).toFixed(1)} %)`);
  said.push(`${doubtful} doubtful`);
  if (unread) said.push(`${unread} not readable`);
  if (failure) said.push(failure);
  return said.join(" · ");
}

function csvOf({ rows }) {
  const columns = ["label", "probability", "confident", "blank", "truth", "error"];
  const head = ["file", ...columns];
  const cells = rows.map((row) => [row.name, ...columns.map((column) => row[column])]);
  return toCsv([head, ...cells]);
}
