// The iterations of routing, played once from the first to the last.

const PLAY_MS = 900; // of each iteration

export class Player {
  #timer = 0;

  /**
   * Show one iteration after the other; what is played already stops.
   *
   * @param {number} iterations
   * @param {(iteration: number) => void} show called with each, from 0
   */
  play(iterations, show) {
    this.stop();
    this.#from(0, iterations, show);
  }

  /** Stay at the iteration that is shown. */
  stop() {
    clearTimeout(this.#timer);
  }

  #from(iteration, iterations, show) {
    show(iteration);
    if (iteration + 1 < iterations) this.#timer = setTimeout(() => this.#from(iteration + 1, iterations, show), PLAY_MS);
  }
}
