// What still belongs to an earlier question is marked, unless the answer comes soon: screen readers know, and it is
// dimmed (base.css).

const SOON_MS = 250;

export class Pending {
  #elements;
  #timer = 0;

  /** @param {HTMLElement[]} elements that show the answer */
  constructor(...elements) {
    this.#elements = elements;
  }

  /** Something was asked. */
  begin() {
    this.#timer ||= setTimeout(() => this.#mark(true), SOON_MS);
  }

  /** What is shown is what was asked last. */
  end() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#mark(false);
  }

  #mark(isPending) {
    for (const element of this.#elements) element.setAttribute("aria-busy", String(isPending));
  }
}
