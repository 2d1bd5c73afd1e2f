// How often files of each class were named as each class.

import { byId, element } from "./dom.js";

/** Show the matrix of rows that have a true label; hides it if none has. */
export function showConfusion(rows, classes) {
  const judged = rows.filter(({ truth, label }) => truth !== null && label);
  byId("confusion-part").hidden = !judged.length;
  if (!judged.length) return;
  const counts = new Map();
  for (const { truth, label } of judged) counts.set(`${truth}\n${label}`, (counts.get(`${truth}\n${label}`) ?? 0) + 1);
  const shown = classes.filter((name) => judged.some(({ truth, label }) => truth === name || label === name));
  const largest = Math.max(...counts.values());
  const head = element("tr", {}, element("th", { scope: "col" }, "is \\ named"), ...shown.map((name) => element("th", { scope: "col" }, name)));
  const body = shown.map((truth) =>
    element("tr", {}, element("th", { scope: "row" }, truth), ...shown.map((label) => cell(counts.get(`${truth}\n${label}`), truth === label, largest))),
  );
  byId("confusion").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function cell(count, isRight, largest) {
  const made = element("td", { class: count ? (isRight ? "right" : "wrong") : "" }, count ? String(count) : "");
  if (count) made.style.setProperty("--share", `${Math.round(12 + (48 * count) / largest)}%`);
  return made;
}
