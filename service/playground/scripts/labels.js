// The true classes of files, as their folders or their names say: 7/a.png, 7_a.png, a-7.png.

/**
 * The class that each path names; null if none, or several. A number in a file's name may mean something else, such as a
 * page: names count if most files carry a class.
 *
 * @param {string[]} paths such as "digits/7/0012.png"
 * @param {string[]} classes names of the model's classes
 */
export function labelsOf(paths, classes) {
  const folders = paths.map((path) => folderLabel(path, classes));
  const labels = paths.map((path, index) => folders[index] ?? nameLabel(path, classes));
  const isRule = 2 * labels.filter((label) => label !== null).length > paths.length;
  return isRule ? labels : folders;
}

function folderLabel(path, classes) {
  return path.split("/").slice(0, -1).findLast((part) => classes.includes(part)) ?? null;
}

function nameLabel(path, classes) {
  const words = path.split("/").at(-1).replace(/\.[^.]*$/, "").split(/[^\p{L}\p{N}]+/u);
  if (classes.includes(words[0])) return words[0];
  const named = new Set(words.filter((word) => classes.includes(word)));
  return named.size === 1 ? [...named][0] : null;
}
