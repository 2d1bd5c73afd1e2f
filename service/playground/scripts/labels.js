// The true class of a file, as its folder or its name says: 7/a.png, 7_a.png, a-7.png.

/**
 * The class that a path names; null if none, or several.
 *
 * @param {string} path such as "digits/7/0012.png"
 * @param {string[]} classes names of the model's classes
 */
export function labelOf(path, classes) {
  const parts = path.split("/");
  const file = parts.pop().replace(/\.[^.]*$/, "");
  const folder = parts.reverse().find((part) => classes.includes(part));
  if (folder !== undefined) return folder;
  const words = file.split(/[^\p{L}\p{N}]+/u);
  if (classes.includes(words[0])) return words[0];
  const named = new Set(words.filter((word) => classes.includes(word)));
  return named.size === 1 ? [...named][0] : null;
}
