// Of a stream of wishes only the latest matters.

/** Runs one asynchronous task at a time; of those that come meanwhile only the last one follows. */
export class Latest {
  #running = null; // its AbortController
  #next = null;

  /**
   * Run the task, now or after the one that runs.
   *
   * @param {(signal: AbortSignal) => Promise<void>} task
   * @param {boolean} now cancel the one that runs
   */
  ask(task, now = false) {
    this.#next = task;
    if (now) this.hurry();
    else if (!this.#running) this.#run();
  }

  /** Run the task that waits, if one does, in place of the one that runs. */
  hurry() {
    if (!this.#next) return;
    this.#running?.abort();
    this.#run();
  }

  /** Cancel what runs and what waits. */
  cancel() {
    this.#next = null;
    this.#running?.abort();
    this.#running = null;
  }

  async #run() {
    const task = this.#next;
    const controller = new AbortController();
    [this.#next, this.#running] = [null, controller];
    try {
      await task(controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) throw error;
    } finally {
      if (this.#running === controller) {
        this.#running = null;
        if (this.#next) this.#run();
      }
    }
  }
}
