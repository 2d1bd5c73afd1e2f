// The buttons that copy what is on the screen: as curl, as Python, as a link.

import { byId } from "./dom.js";
import { linkTo } from "./share.js";
import { asCurl, asPython } from "./snippets.js";

const SAID_MS = 4000;

/** Listen to the buttons. */
export function prepareTakeaway(explore) {
  const wanted = {
    "copy-curl": () => explore.state.answer && asCurl(explore.state),
    "copy-python": () => explore.state.answer && asPython(explore.state),
    share: () => linkTo(explore),
  };
  for (const [id, make] of Object.entries(wanted))
    byId(id).addEventListener("click", async () => {
      const text = await make();
      if (!text) return say("There is nothing to copy yet");
      if (!(await copy(text))) say("The browser does not let this page copy");
      else say(id === "share" ? "The link is copied" : "Copied");
    });
}

/** Whether the text is in the clipboard now. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  // Browsers hide the clipboard from pages of plain HTTP, except from localhost.
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "hidden" });
  const before = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  before?.focus();
  return isCopied;
}

let timer = 0;

function say(text) {
  byId("copied").textContent = text;
  clearTimeout(timer);
  timer = setTimeout(() => (byId("copied").textContent = ""), SAID_MS);
}
