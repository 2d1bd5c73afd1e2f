// How far votes lie from the class's pose (Fig. 2 of Hinton et al. 2018), as a histogram.

/**
 * Draw a histogram.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} shares of each bin
 * @param {number[]} edges of the bins, one more
 * @param {number} full share of the highest bar
 */
export function drawHistogram(canvas, shares, edges, full) {
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
  drawing.fillText("distance of the votes", width / 2, height - 6);
  drawing.textAlign = "left";
}
