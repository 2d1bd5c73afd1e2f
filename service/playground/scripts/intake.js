// Images from elsewhere: opened, pasted or dropped.

import { byId } from "./dom.js";

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
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length && isShown()) onFiles(pasted);
  });
  const area = byId("explore");
  area.addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("dropping");
  });
  area.addEventListener("dragleave", (event) => {
    if (!area.contains(event.relatedTarget)) area.classList.remove("dropping");
  });
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("dropping");
    if (event.dataTransfer.files.length) onFiles([...event.dataTransfer.files]);
  });
}
