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
  return path.split("/").slice(0, -1).map((part) => classNamed(part, classes)).findLast(Boolean) ?? null;
}

function nameLabel(path, classes) {
  const words = path.split("/").at(-1).replace(/\.[^.]*$/, "").split(/[^\p{L}\p{M}\p{N}]+/u);
  const named = words.map((word) => classNamed(word, classes));
  if (named[0]) return named[0];
  const found = new Set(named.filter(Boolean));
  return found.size === 1 ? [...found][0] : null;
}

/** The class of this name, whose accents may be written in another way. */
function classNamed(name, classes) {
  return classes.find((one) => one.normalize("NFC") === name.normalize("NFC"));
}
