"""capsnet-score: many pictures to one table, over HTTP or in process.

Everything streams: pictures are found and read as scoring goes on, a few batches are in flight at once, and
rows are written in the pictures' order as soon as their batch is done. Memory does not grow with the number
of pictures. One that cannot be scored has no row; it is among the errors.
"""

from service.score.cli import main

__all__ = ["main"]
