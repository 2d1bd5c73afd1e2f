// Tables as CSV (RFC 4180), with a byte order mark: without it Excel takes UTF-8 for something else.

const FORMULA = /^[=+\-@\t\r]/; // texts that spreadsheets compute

/**
 * A CSV file of rows of values. As capsnet-score does, it puts an apostrophe in front of a text that a spreadsheet
 * would take for a formula: names of files are untrusted.
 */
export function toCsv(rows) {
  const text = rows.map((row) => row.map(field).join(",")).join("\r\n");
  return new Blob([`\ufeff${text}\r\n`], { type: "text/csv;charset=utf-8" });
}

function field(value) {
  const text = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
