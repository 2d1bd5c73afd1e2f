// The page: its views, and what they share.

import { Chooser } from "./chooser.js";
import { Explore } from "./explore.js";
import { watchConnection } from "./notices.js";
import { prepareSheet } from "./sheet.js";
import { prepareTabs } from "./tabs.js";

watchConnection();
prepareSheet();
const explore = new Explore();
const chooser = new Chooser((model) => explore.setModel(model));
prepareTabs(() => {});
await chooser.start();
