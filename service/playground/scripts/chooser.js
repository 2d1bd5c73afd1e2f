// The models to choose from, of all that the service has loaded or can load.

import * as api from "./api.js";
import { byId, element } from "./dom.js";
import { dismiss, tell } from "./notices.js";
import { ServiceError } from "./transport.js";

const SERVED = new Set(["loaded", "available", "loading"]);

export class Chooser {
  #models = [];
  #chosen = null; // {name, version}
  #onChoose;
  #turn = 0;

  /** @param {(model: {name: string, version: number, manifest: object}) => Promise<void>} onChoose */
  constructor(onChoose) {
    this.#onChoose = onChoose;
  }

  /** Ask for the models and choose the wanted one, else the default; waits until one is served. */
  async start(wanted, version) {
    this.#models = await someModels();
    const named = this.#models.find(({ name }) => name === wanted);
    const chosen = named ?? this.#models.find((model) => model.default) ?? this.#models[0];
    this.#show(await Promise.all(this.#models.map(described)));
    await this.choose(chosen.name, named && version);
    if (wanted && !named) tell(`${wanted} is not served here. This is ${chosen.name}.`, { lasts: true });
  }

  /** The service does not have the chosen version any more: choose another one; false if it has it, after all. */
  async replace() {
    const { name, version } = this.#chosen;
    const all = await served(name).catch(noneOf);
    if (all.some((one) => one.version === version)) return false;
    await this.start(name, version);
    return true;
  }

  /** Choose a model, and a version if it is not the one that answers requests that name none. */
  async choose(name, version) {
    const turn = ++this.#turn;
    dismiss();
    const all = await someServed(name).catch((error) => {
      if (turn === this.#turn && this.#chosen) mark(this.#chosen);
      throw error;
    });
    if (turn !== this.#turn) return; // another one was chosen meanwhile
    const one = all.find((each) => each.version === version) ?? defaultOf(all);
    this.#chosen = { name, version: one.version };
    this.#showVersions(name, all);
    mark(this.#chosen);
    if (version && one.version !== version) tell(`Version ${version} of ${name} is not served. This is version ${one.version}.`, { lasts: true });
    await this.#onChoose({ name, version: one.version, manifest: one.manifest });
  }

  /** The first model whose manifest fits, the default one before others; undefined if none does. */
  async find(fits) {
    const found = await Promise.all(this.#models.map(described));
    found.sort((a, b) => b.isDefault - a.isDefault);
    return found.find(({ manifest }) => manifest && fits(manifest));
  }

  #show(found) {
    const legend = byId("models").querySelector("legend");
    byId("models").replaceChildren(legend, ...found.map((one) => this.#card(one)));
  }

  #card({ name, manifest }) {
    const input = element("input", { type: "radio", name: "model", value: name });
    input.addEventListener("change", () => this.choose(name));
    return element("label", { class: "model" }, input, element("b", {}, name), element("small", {}, said(manifest)));
  }

  #showVersions(name, all) {
    const before = byId("models").querySelector("#versions");
    if (all.length < 2) return before?.remove();
    const options = all.map(({ version }) => element("option", { value: version }, `version ${version}`));
    const list = before ?? element("select", { id: "versions" }); // the same one keeps the focus
    list.setAttribute("aria-label", `Version of ${name}`);
    list.replaceChildren(...options);
    if (before) return;
    list.addEventListener("change", () => this.choose(this.#chosen.name, Number(list.value)));
    byId("models").append(list);
  }
}

/** The models that are served, as soon as there is one. */
async function someModels() {
  for (;;) {
    const all = await api.models();
    const found = all.filter(({ versions }) => versions.some(({ state }) => SERVED.has(state)));
    if (found.length) return found;
    tell("No model is served at present. The page goes on as soon as there is one.");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

async function described(model) {
  const one = defaultOf(await served(model.name));
  return { name: model.name, version: one?.version, manifest: one?.manifest, isDefault: model.default };
}

/** The versions of a model that are served. */
async function served(name) {
  return (await api.versions(name)).filter(({ state }) => SERVED.has(state));
}

/** No versions of a model that is gone. */
function noneOf(error) {
  if (error.status !== 404) throw error;
  return [];
}

/** Those versions, at least one. */
async function someServed(name) {
  const all = await served(name);
  if (!all.length) throw new ServiceError(404, { title: `No version of ${name} is served any more` });
  return all;
}

/** Show which model and version are chosen. */
function mark({ name, version }) {
  const input = byId("models").querySelector(`input[value="${CSS.escape(name)}"]`);
  if (input) input.checked = true;
  const list = byId("versions");
  if (list) list.value = version;
}

/** The version that answers requests that name none, else the newest; undefined of no versions. */
function defaultOf(versions) {
  return versions.find((one) => one.default) ?? versions[0];
}

function said(manifest) {
  if (!manifest) return "";
  if (manifest.views === 2) return "stereo pairs";
  if (manifest.objects_per_image > 1) return `${manifest.objects_per_image} overlapping objects`;
  return `one of ${manifest.class_names.length} classes`;
}
