// The line over the page: errors of the service in its words, a busy or lost service, and the dialog for a key.

import { byId } from "./dom.js";
import { awaitsKey, connection, ServiceError, useKey } from "./transport.js";

const SAID = {
  busy: "The service is busy. Trying again …",
  slow: "Waiting for the service. A model that is used for the first time takes a moment to load.",
  lost: "The connection is lost. Trying again …",
};
let state = "well";
let isLasting = false; // whether the line stays when something works

/** Begin to watch the connection. */
export function watchConnection() {
  for (const name of ["busy", "lost", "slow", "well"]) connection.addEventListener(name, () => enter(name));
  connection.addEventListener("key", ({ detail }) => askForKey(detail.refused));
  byId("notice-close").addEventListener("click", close);
  const dialog = byId("key-dialog");
  dialog.addEventListener("cancel", (event) => event.preventDefault()); // nothing works without one
  dialog.addEventListener("close", () => awaitsKey() && !dialog.open && dialog.showModal()); // a second Escape
  byId("key-form").addEventListener("submit", () => useKey(byId("key").value.trim()));
  addEventListener("unhandledrejection", (event) => sayUncaught(event, event.reason));
  addEventListener("error", (event) => sayUncaught(event, event.error)); // of an `await` outside of functions
}

function sayUncaught(event, error) {
  if (!(error instanceof ServiceError)) return;
  event.preventDefault();
  tell(sentence(error));
}

/** Show this line until something works; if it lasts, until somebody goes on to something else. */
export function tell(text, { lasts = false } = {}) {
  isLasting = lasts;
  byId("notice-text").textContent = byId("notice-spoken").textContent = text;
  byId("notice").hidden = false;
}

/** Something works: take the line away, unless it lasts, or is about the connection. */
export function hush() {
  if (!isLasting) dismiss();
}

/** Somebody goes on to something else: take the line away, unless it is about the connection. */
export function dismiss() {
  if (state === "well") close();
}

function close() {
  byId("notice").hidden = true;
  byId("notice-spoken").textContent = "";
}

/** An error of the service as a sentence. */
export function sentence(error) {
  return error.title && !error.message.startsWith(error.title) ? `${error.title}: ${error.message}` : error.message;
}

function enter(next) {
  if (next === state) return;
  state = next;
  if (next === "well") hush();
  else tell(SAID[next]);
}

function askForKey(refused) {
  byId("key").value = "";
  byId("key-refused").hidden = !refused;
  byId("key-dialog").showModal();
}
