// The whole sheet of Fig. 4 (Sabour et al. 2017): every dimension a row, from -0.25 to 0.25; to look at and to save.

import { byId } from "./dom.js";
import { save, toFile } from "./picture.js";

const SWEEP = { start: -0.25, stop: 0.25, step: 0.05 };
const COLUMNS = 11;
const SCALE = 2; // of a model's pixel
const GAP = 2;
const [MARGIN, HEAD] = [118, 30]; // for the rows' and the columns' names

let name = "capsule.png";

/** Ask for the sheet of a capsule and show it in its dialog, unless somebody has gone on meanwhile. */
export async function openSheet(sweeps, moves, signal) {
  const grid = await sweeps.sheet(moves, SWEEP);
  if (signal.aborted || byId("sheet").offsetParent === null) return; // another view is shown
  name = `${sweeps.model.name}-${sweeps.label}.png`;
  paint(byId("sheet-picture"), grid, moves.length);
  byId("sheet-dialog").showModal();
}

/** Listen to the dialog's buttons. */
export function prepareSheet() {
  byId("sheet-close").addEventListener("click", () => byId("sheet-dialog").close());
  byId("sheet-save").addEventListener("click", async () => save(await toFile(byId("sheet-picture")), name));
}

function paint(canvas, grid, rows) {
  const [width, height] = [grid.width / COLUMNS, grid.height / rows];
  const [across, down] = [width * SCALE + GAP, height * SCALE + GAP];
  Object.assign(canvas, { width: MARGIN + COLUMNS * across, height: HEAD + rows * down });
  const drawing = canvas.getContext("2d");
  drawing.fillStyle = "white";
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  Object.assign(drawing, { imageSmoothingEnabled: false, fillStyle: "#333", textBaseline: "middle" });
  drawing.font = "13px system-ui, sans-serif";
  for (let column = 0; column < COLUMNS; column += 5) {
    const delta = (SWEEP.start + column * SWEEP.step).toFixed(2).replace("-", "−");
    drawing.textAlign = "center";
    drawing.fillText(delta, MARGIN + (column + 0.5) * across, HEAD / 2);
  }
  drawing.textAlign = "left";
  for (let row = 0; row < rows; row++) {
    drawing.fillText(`dimension ${row}`, 10, HEAD + (row + 0.5) * down);
    for (let column = 0; column < COLUMNS; column++) {
      const place = [MARGIN + column * across, HEAD + row * down, width * SCALE, height * SCALE];
      drawing.drawImage(grid, column * width, row * height, width, height, ...place);
    }
  }
}
