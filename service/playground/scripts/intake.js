// Images from elsewhere: opened, pasted or dropped.

import { byId } from "./dom.js";
import { takeDrops } from "./drops.js";

/** Hand over files, one or several, wherever they come from, while the explore view is shown. */
export function takeFiles(onFiles) {
  const isShown = () => !byId("explore").hidden;
  const file = byId("file");
  for (const button of ["open", "open-pair"]) byId(button).addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    if (file.files.length) onFiles([...file.files]);
    file.value = "";
  });
  document.addEventListener("paste", (event) => {
    // Without their names, as these are of no file: browsers call every picture of a clipboard image.png.
    const pasted = [...(event.clipboardData?.files ?? [])].map((file) => new Blob([file], { type: file.type }));
    if (pasted.length && isShown()) onFiles(pasted);
  });
  takeDrops(byId("explore"), ({ files }) => onFiles([...files]));
}
