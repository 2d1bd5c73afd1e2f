// The page: its views, and what they share.

import { Chooser } from "./chooser.js";
import { Explore } from "./explore.js";
import { watchConnection } from "./notices.js";
import { Score } from "./score.js";
import { kept, restore } from "./share.js";
import { prepareSheet } from "./sheet.js";
import { prepareTabs } from "./tabs.js";
import { prepareTakeaway } from "./takeaway.js";
import { Tour } from "./tour.js";

watchConnection();
prepareSheet();
const [explore, score] = [new Explore(), new Score()];
prepareTakeaway(explore);
const chooser = new Chooser(async (model) => {
  score.setModel(model);
  await explore.setModel(model);
});
const tour = new Tour(() => chooser.find(showsSingleDigits));
prepareTabs((name) => name === "tour" && tour.start());
const before = kept();
await chooser.start(before?.model, before?.version);
if (before) await restore(explore, before);

/** Whether the tour can show this model: single digits, with poses that are vectors, and a decoder. */
function showsSingleDigits({ class_names: names, objects_per_image: objects, views, pose_shape: shape, graphs }) {
  return names.length === 10 && names[7] === "7" && objects === 1 && views === 1 && shape.length === 1 && graphs.decoder;
}
