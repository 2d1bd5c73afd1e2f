// Files that are dropped anywhere on the page: the view that is shown takes them.

const hasFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");

/** Hand over what is dropped while a view is shown. */
export function takeDrops(view, onDrop) {
  const mark = (isOver) => view.classList.toggle("dropping", isOver);
  addEventListener("dragover", (event) => mark(hasFiles(event)));
  addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || mark(false)); // it has left the window
  addEventListener("drop", (event) => {
    mark(false);
    if (hasFiles(event) && !view.hidden) onDrop(event.dataTransfer);
  });
}

/** Let no dropped file take the place of the page. */
export function keepDrops() {
  for (const name of ["dragover", "drop"]) addEventListener(name, (event) => hasFiles(event) && event.preventDefault());
}
