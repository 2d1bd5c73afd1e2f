// Light or dark, as the system says.

/** Call this with each change: canvases are to be painted in the new colors. */
export const onScheme = (paint) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
