// How far votes lie from the pose of their class or capsule (Fig. 2 of Hinton et al. 2018), as a histogram.

/**
 * Draw a histogram.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} shares of each bin
 * @param {{edges: number[], full: number, axis: string}} scale edges of the bins, one more than bins; the share of the
 *   highest bar; what the axis shows
 */
export function drawHistogram(canvas, shares, { edges, full, axis }) {
  const drawing = canvas.getContext("2d");
  const { width, height } = canvas;
  const style = getComputedStyle(canvas);
  const bottom = height - 34;
  drawing.clearRect(0, 0, width, height);
  drawing.fillStyle = style.getPropertyValue("--accent");
  const wide = width / shares.length;
  shares.forEach((share, index) => {
    const tall = (share / full) * (bottom - 8);
    drawing.fillRect(index * wide + 1, bottom - tall, wide - 2, tall);
  });
  drawing.fillStyle = style.color;
  drawing.font = `22px ${style.fontFamily}`;
  drawing.fillText(edges[0].toFixed(1), 0, height - 6);
  drawing.textAlign = "right";
  drawing.fillText(edges.at(-1).toFixed(1), width, height - 6);
  drawing.textAlign = "center";
  drawing.fillText(axis, width / 2, height - 6);
  drawing.textAlign = "left";
}
