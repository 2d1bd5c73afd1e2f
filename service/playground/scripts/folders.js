// Files of folders that were dropped or chosen, but hidden ones.

/** Every file of a drop, [{file, path}]; in place of a file or a folder that cannot be read {path, error}. */
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, path: file.name }));
  return (await Promise.all(entries.map(filesIn))).flat();
}

async function filesIn(entry) {
  const path = entry.fullPath.replace(/^\//, "");
  const found = [];
  try {
    if (entry.isFile) return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path }];
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // 100 at a time
      if (!some.length) break;
      for (const files of await Promise.all(some.map(filesIn))) for (const one of files) found.push(one); // maybe too many to spread
    }
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    found.push({ path, error: `cannot be read: ${error.message}` });
  }
  return found.filter(({ path }) => !isHidden(path));
}

/** Whether a file in a folder, or a folder above it, is hidden. */
export const isHidden = (path) => path.split("/").some((part) => part.startsWith("."));
