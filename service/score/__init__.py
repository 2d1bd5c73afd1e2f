"""capsnet-score: many pictures to one table, over HTTP or in process.

Everything streams: pictures are found and read as scoring goes on, a few batches are in flight at once, and
rows are written in the pictures' order as soon as their batch is done. Memory does not grow with the number
of pictures. One that cannot be scored has no row; it is among the errors.
"""

from service.extras import naming_the_extra


def main(arguments: list[str] | None = None) -> None:
    """Run the command line of capsnet-score."""
    with naming_the_extra("capsnet-score"):
        from service.score.cli import main as run

        run(arguments)
