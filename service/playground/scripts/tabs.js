// The views, one at a time, as tabs: arrow keys go from one to the next.

import { byId } from "./dom.js";

const TABS = ["explore", "tour", "score"];

/** Listen to the tabs; `onShow` is called with the name of a view that is shown. */
export function prepareTabs(onShow) {
  TABS.forEach((name, index) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => showTab(name, onShow));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return; // those are the browser's
      const next = TABS[(index + step + TABS.length) % TABS.length];
      showTab(next, onShow);
      byId(`tab-${next}`).focus();
    });
  });
}

/** Show a view, if there is one of this name. */
export function showTab(name, onShow) {
  if (!TABS.includes(name)) return;
  for (const each of TABS) {
    const isShown = each === name;
    byId(each).hidden = !isShown;
    byId(`tab-${each}`).setAttribute("aria-selected", String(isShown));
    byId(`tab-${each}`).tabIndex = isShown ? 0 : -1;
  }
  byId("models").hidden = name === "tour";
  byId("copy-code").hidden = name !== "explore";
  onShow(name);
}
