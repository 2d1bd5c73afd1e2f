// Tables as CSV (RFC 4180).

/** A CSV file of rows of values. */
export function toCsv(rows) {
  const text = rows.map((row) => row.map(field).join(",")).join("\r\n");
  return new Blob([`${text}\r\n`], { type: "text/csv;charset=utf-8" });
}

function field(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
