/** What cannot be answered, in words, with the status and the title that the HTTP API has for it. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    Object.assign(this, { status, title });
  }
}
