// The page: its views, and what they share.

import { keep, parts } from "./address.js";
import { canReadPixels } from "./canvases.js";
import { Chooser } from "./chooser.js";
import { byId } from "./dom.js";
import { keepDrops } from "./drops.js";
import { Explore } from "./explore.js";
import { dismiss, tell, watchConnection } from "./notices.js";
import { Score } from "./score.js";
import { kept, restore } from "./share.js";
import { prepareSheet } from "./sheet.js";
import { prepareTabs, showTab } from "./tabs.js";
import { prepareTakeaway } from "./takeaway.js";
import { Tour } from "./tour.js";
import { ServiceError } from "./transport.js";

watchConnection();
keepDrops();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address keeps what it has
  byId("main").focus();
});
prepareSheet();
const onGone = () => chooser.replace();
const [explore, score] = [new Explore(onGone), new Score(onGone)];
addEventListener("unhandledrejection", ({ reason }) => reason instanceof ServiceError && reason.status === 404 && onGone());
prepareTakeaway(explore);
const chooser = new Chooser(async (model) => {
  score.setModel(model);
  await explore.setModel(model);
});
const before = await kept();
const started = chooser.start(before?.model, before?.version);
const tour = new Tour(
  async () => {
    await started;
    return chooser.find(showsSingleDigits);
  },
  (step) => !byId("tour").hidden && keep({ step }),
  Number(parts().get("step")),
);
prepareTabs(onShow);
showTab(parts().get("tab"), onShow);
addEventListener("hashchange", () => (parts().has("see") || parts().has("tab")) && location.reload()); // another link
await started;
if (!canReadPixels()) // what a link brings is told after it
  tell("This browser hides the pixels of canvases from pages (fingerprinting protection): what is drawn or turned here gets a wrong answer. Allow this page to read canvases.", { lasts: true });
explore.onEdit = () => keep({ see: null }); // a reload brings back what is on the screen, or nothing
if (before) await restore(explore, before);
else if (parts().has("see")) tell("This link is damaged, or cut short: it brings nothing back.", { lasts: true });

function onShow(name) {
  dismiss();
  keep({ tab: name === "explore" ? null : name, step: name === "tour" ? tour.step : null });
  if (name === "tour") tour.start();
  else tour.stop();
}

/** Whether the tour can show this model: single digits, with poses that are vectors, and a decoder. */
function showsSingleDigits({ class_names: names, objects_per_image: objects, views, pose_shape: shape, graphs }) {
  return names.length === 10 && names[7] === "7" && objects === 1 && views === 1 && shape.length === 1 && graphs.decoder;
}
