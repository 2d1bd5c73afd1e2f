"""capsnet-score: many pictures to one table, over HTTP or in this process.

Everything streams: pictures are found and read while others are scored, a few batches are in flight at once,
and rows are written in the order of the pictures as soon as their batch is done. Memory use does not grow
with the number of pictures, except for names: those that a pattern matches, those in one folder, those in a
zip, and with --ray all of them. A picture that cannot be scored gets no row; it is listed among the errors.
"""

import sys
import traceback

from export.contract.ctrl_c import leave_quietly_in_imports
from export.contract.extras import SERVING, naming_the_extra

OWN_FAULT = 3  # Python's own status, 1, says that some pictures were skipped


def main(arguments: list[str] | None = None) -> None:
    """Run the command line of capsnet-score."""
    leave_quietly_in_imports()
    try:
        with naming_the_extra("capsnet-score", SERVING):
            from service.score.cli import main as run

            run(arguments)
    except Exception:
        traceback.print_exc()
        sys.exit(OWN_FAULT)
