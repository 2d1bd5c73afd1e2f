// The page: its views, and what they share.

import { Chooser } from "./chooser.js";
import { Explore } from "./explore.js";
import { watchConnection } from "./notices.js";
import { Score } from "./score.js";
import { kept, restore } from "./share.js";
import { prepareSheet } from "./sheet.js";
import { prepareTabs } from "./tabs.js";
import { prepareTakeaway } from "./takeaway.js";

watchConnection();
prepareSheet();
const [explore, score] = [new Explore(), new Score()];
prepareTakeaway(explore);
prepareTabs(() => {});
const chooser = new Chooser(async (model) => {
  score.setModel(model);
  await explore.setModel(model);
});
const before = kept();
await chooser.start(before?.model, before?.version);
if (before) await restore(explore, before);
