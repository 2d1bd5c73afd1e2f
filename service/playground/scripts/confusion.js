// How often files of each class were named as each class.

import { byId, element } from "./dom.js";

/** Show the matrix of the answers to files that have a true label; hides it if none has. Blank images have a column. */
export function showConfusion(rows, classes) {
  const judged = rows.filter(({ truth, error }) => truth !== null && !error);
  byId("confusion-part").hidden = !judged.length;
  if (!judged.length) return;
  const counts = new Map();
  for (const { truth, label } of judged) counts.set(`${truth}\n${label}`, (counts.get(`${truth}\n${label}`) ?? 0) + 1);
  const shown = classes.filter((name) => judged.some(({ truth, label }) => truth === name || label === name));
  const columns = judged.some(({ label }) => !label) ? [...shown, ""] : shown;
  const largest = Math.max(...counts.values());
  const head = element("tr", {}, element("th", { scope: "col" }, "is \\ named"), ...columns.map((name) => element("th", { scope: "col" }, name || "—")));
  const body = shown.map((truth) =>
    element("tr", {}, element("th", { scope: "row" }, truth), ...columns.map((label) => cell(counts.get(`${truth}\n${label}`), truth === label, largest))),
  );
  byId("confusion").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function cell(count, isRight, largest) {
  const made = element("td", { class: count ? (isRight ? "right" : "wrong") : "" }, count ? String(count) : "");
  if (count) made.style.setProperty("--share", `${Math.round(12 + (48 * count) / largest)}%`);
  return made;
}
