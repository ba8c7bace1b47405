// Requests that follow a slider: one on the way at a time, and only the newest value counts.

/** A function that may be called at any rate; `send` runs one after the other, with the latest argument. */
export function newest<A, R>(
  send: (argument: A) => Promise<R>,
  show: (result: R) => void,
  fail: (error: unknown) => void,
) {
  let waiting: { argument: A } | null = null;
  let running = false;

  async function run(): Promise<void> {
    running = true;
    while (waiting) {
      const { argument } = waiting;
      waiting = null;
      try {
        const result = await send(argument);
        // An answer to a value that was left behind meanwhile would make the page flicker back.
        if (!waiting) show(result);
      } catch (error) {
        if (!waiting) fail(error);
      }
    }
    running = false;
  }

  return (argument: A): void => {
    waiting = { argument };
    if (!running) void run();
  };
}

/** Act once things have been quiet for a while. */
export function quiet(wait: number): (act: () => void) => void {
  let timer = 0;
  return (act) => {
    window.clearTimeout(timer);
    timer = window.setTimeout(act, wait);
  };
}
