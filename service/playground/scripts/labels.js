// The true classes of files, as their folders or their names say: 7/a.png, 7_a.png, a-7.png.

const LETTERS = "\\p{L}\\p{M}\\p{N}";

/**
 * The class that each path names: its innermost folder that is named like a class; else the class at the start of the
 * file's name, or the only class in it; null if there is none. A number in a file's name may mean something else, such as
 * a page: names of files count if most files carry a class.
 *
 * @param {string[]} paths such as "digits/7/0012.png"
 * @param {string[]} classes names of the model's classes
 */
export function labelsOf(paths, classes) {
  const pattern = patternOf(classes);
  const folders = paths.map((path) => folderLabel(path, classes));
  const labels = paths.map((path, index) => folders[index] ?? nameLabel(path, classes, pattern));
  const isRule = 2 * labels.filter((label) => label !== null).length > paths.length;
  return isRule ? labels : folders;
}

function folderLabel(path, classes) {
  return path.split("/").slice(0, -1).map((part) => classNamed(part, classes)).findLast(Boolean) ?? null;
}

function nameLabel(path, classes, pattern) {
  const stem = path.split("/").at(-1).replace(/\.[^.]*$/, "").normalize("NFC");
  const named = [...stem.matchAll(pattern)];
  const found = new Set(named.map(({ groups }) => classNamed(groups.name, classes)));
  const isFirst = named[0]?.groups.before === "";
  return isFirst || found.size === 1 ? [...found][0] : null;
}

/** Finds names of classes as whole words, the longest first: of `sports_car` no `car`. */
function patternOf(classes) {
  const names = classes.map((one) => one.normalize("NFC").replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  const longestFirst = names.sort((a, b) => b.length - a.length).join("|");
  return new RegExp(`(?<before>^|[^${LETTERS}])(?<name>${longestFirst})(?![${LETTERS}])`, "gu");
}

/** The class of this name, whose accents may be written in another way. */
function classNamed(name, classes) {
  return classes.find((one) => one.normalize("NFC") === name.normalize("NFC"));
}
