// What the figures of the tour are drawn with: numbers as bars, the squashing curve.

import { element } from "./dom.js";

const LONGEST = 12; // of the curve, which is flat there

/** The numbers of a pose as bars to both sides of a line, [{set}], and the element that holds them. */
export function poseBars(size) {
  const rows = Array.from({ length: size }, (_, index) => {
    const bar = element("span", { class: "pose-bar" });
    const value = element("span", { class: "value" });
    const row = element("div", { class: "pose-row" }, element("span", { class: "name" }, String(index)), element("span", { class: "pose-track" }, bar), value);
    return { row, bar, value };
  });
  const box = element("div", { class: "pose", role: "img" }, ...rows.map(({ row }) => row));
  const set = (pose) => {
    box.setAttribute("aria-label", `The capsule: ${pose.map((one) => one.toFixed(2)).join(", ")}`);
    pose.forEach((one, index) => {
      const { bar, value } = rows[index];
      const half = 50 * Math.min(1, Math.abs(one));
      Object.assign(bar.style, { left: `${one < 0 ? 50 - half : 50}%`, width: `${half}%` });
      bar.classList.toggle("below", one < 0);
      value.textContent = one.toFixed(2).replace("-", "−");
    });
  };
  return { box, set };
}

/** A slider with a name, and what it stands for; the label that holds it. */
export function slider(name, { min, max, step = 1, value, unit }, onMove) {
  const input = element("input", { type: "range", min, max, step, value });
  const said = element("span", { class: "value", "aria-hidden": "true" });
  const tell = () => {
    said.textContent = `${Number(input.value) > 0 ? "+" : ""}${input.value.replace("-", "−")}${unit}`;
    input.setAttribute("aria-valuetext", `${input.value}${unit}`);
  };
  input.addEventListener("input", () => {
    tell();
    onMove(Number(input.value));
  });
  tell();
  return element("label", { class: "turn" }, name, said, input);
}

/** The curve of squashing with a dot for each class, where its length came from; `paint` draws it once it is on the page. */
export function squashCurve(classes) {
  const [width, height, left, bottom] = [640, 400, 56, 48];
  const lengths = classes.map(({ probability }) => Math.min(unsquash(probability), LONGEST));
  const maxLength = Math.max(5, ...lengths);
  const canvas = element("canvas", { width, height, class: "curve", role: "img" });
  canvas.setAttribute("aria-label", "Squashing: the length after it over the length before it, with a dot for each class");
  const x = (before) => left + (before / maxLength) * (width - left - 16);
  const y = (after) => height - bottom - after * (height - bottom - 20);
  const paint = () => {
    const [drawing, style] = [canvas.getContext("2d"), getComputedStyle(canvas)];
    drawing.clearRect(0, 0, width, height);
    Object.assign(drawing, { font: `20px ${style.fontFamily}`, fillStyle: style.color, strokeStyle: style.getPropertyValue("--line"), lineWidth: 2 });
    for (const after of [0, 0.5, 1]) {
      line(drawing, [[left, y(after)], [width - 16, y(after)]]);
      drawing.fillText(after.toFixed(1), 12, y(after) + 7);
    }
    drawing.fillText("length before squashing", width / 2 - 90, height - 8);
    drawing.strokeStyle = style.getPropertyValue("--soft");
    line(drawing, Array.from({ length: 200 }, (_, i) => [x((i / 199) * maxLength), y(squash((i / 199) * maxLength))]));
    classes.forEach(({ label, probability }, rank) => dot(drawing, style, label, [x(lengths[rank]), y(probability)], rank === 0));
  };
  return { canvas, paint };
}

/** The length before squashing, of one after it: |s| = sqrt(v / (1 - v)). */
export const unsquash = (after) => Math.sqrt(after / (1 - Math.min(after, 0.9999)));

const squash = (before) => before ** 2 / (1 + before ** 2);

function line(drawing, points) {
  drawing.beginPath();
  points.forEach((point) => drawing.lineTo(...point));
  drawing.stroke();
}

function dot(drawing, style, label, [x, y], isBest) {
  drawing.fillStyle = style.getPropertyValue(isBest ? "--accent" : "--mark");
  drawing.beginPath();
  drawing.arc(x, y, isBest ? 9 : 5, 0, 2 * Math.PI);
  drawing.fill();
  if (isBest) drawing.fillText(label, x - 6, y + 34);
}
