"""capsnet-serve that collects garbage on SIGUSR1, and prints how many objects the collector then tracks."""

import gc
import signal
import sys

from service.cli import main


def collect(*_: object) -> None:
    """Print how many objects a full collection looks through."""
    gc.collect()
    sys.stderr.write(f"tracked objects: {len(gc.get_objects())}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, collect)
    sys.exit(main())
