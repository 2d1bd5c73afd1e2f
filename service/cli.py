"""capsnet-serve: the service on a port."""

import sys

from service.stopping import leave_at_signals

TYPE_CHECKING = False  # importing `typing` would take milliseconds without a signal handler
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Serve until a signal comes; returns the exit status."""
    leave_at_signals()
    # Imported late, so that a signal during the imports ends the process quietly.
    from export.contract.extras import SERVING, naming_the_extra

    with naming_the_extra("capsnet-serve", SERVING):
        from service.serve import run

        return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
