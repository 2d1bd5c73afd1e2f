"""The command line of capsnet-score.

Exit status: 0 every picture has a row; 1 some were skipped; 2 wrong usage, no service or nothing scored; 130
stopped with Ctrl-C, 141 the reader of stdout went away. However it ends, rows written before stay, and
--resume goes on from there.
"""

import argparse
import logging
import os
import sys
from importlib.metadata import version as installed_version

from capsnet import DEFAULT_URL
from service.score.query import ScoreError
from service.score.run import run
from service.score.terminal import say
from service.settings import SettingsError

BATCH = 32
CONCURRENCY = 4
PATIENCE_S = 120
OF_THE_COMMAND = 0  # no model has this version
STOPPED_BY_SIGNAL = 130  # what a shell gives a command that SIGINT ended
READER_LEFT = 141  # the same for SIGPIPE

EXAMPLES = """examples:
  capsnet-score 7.png                                           one picture, to the terminal
  capsnet-score digits/ --out scores.csv                        every picture in a folder and its subfolders
  capsnet-score 'scans/**/*.png' --out scores.jsonl             a pattern, quoted for more than a shell takes
  capsnet-score scans.tar.gz more.zip --out scores.parquet      archives are read as they are
  capsnet-score 'set/*.parquet' --out scores.csv --poses        pictures in Parquet files, poses in the table
  find / -name '*.png' | capsnet-score --files-from - --out scores.csv
  capsnet-score digits/ --out scores.csv --resume               go on after a crash, or begin
  capsnet-score digits/ --out scores.csv --url http://gpu:8001  a service elsewhere
  capsnet-score digits/ --out scores.csv --local                no service: the model runs in this process
  capsnet-score 1_left.png 1_right.png --model matrix-capsnet-toys
                                                                one stereo pair, one row

Folders, archives and patterns give files with picture suffixes whose names do not begin with a dot; folders
sorted, archives in their own order. A file named itself is taken whatever its suffix. Rows of Parquet files
are called set.parquet#12; files in archives scans.zip/a/7.png.

For a model of two views two neighbours in that order are a pair, the left view first, as in a folder of
1_left.png, 1_right.png, 2_left.png, ...; a pair has one row, called by both names. Pairs lie in one folder,
on disk or in an archive, or in one Parquet file; in a list (--files-from) they are whatever files stand side
by side. An odd number of pictures is an error before anything is scored; in a tar archive, a Parquet file or
a list from a pipe, where it is known at the end alone, the picture left over is one without a row.

A row is confident if its picture is not blank and all classes that it names are probable enough: what
the model expects of answers that are right, see `confidence` in its manifest, or --min-probability.

Pictures without a row and the reasons go to scores.csv.errors.jsonl beside the table (to stderr when rows go
to stdout). scores.csv.run.json tells how far a run is and what it was asked; --resume needs the same pictures
in the same order. A key for the service is read from CAPSNET_API_KEY.

exit status: 0 every picture has a row, 1 some were skipped, 2 wrong usage, no service, or nothing was scored
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's end with one line and status 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version == OF_THE_COMMAND:
        if options != parser.parse_args(["--version"]):
            parser.error("--version of a model needs its number; only alone does it print the command's own")
        print(f"capsnet-score {installed_version('capsnet')}")
        sys.exit(0)
    logging.basicConfig(format="capsnet-score: %(message)s")  # warnings: versions and devices passed over
    try:
        sys.exit(run(options))
    except KeyboardInterrupt:
        again = "" if options.out == "-" else "; --resume goes on with them"
        say(f"interrupted; the rows written so far stay{again}")
        sys.exit(STOPPED_BY_SIGNAL)
    except BrokenPipeError:  # as `| head` does once it has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        sys.exit(READER_LEFT)
    except (ScoreError, SettingsError, OSError) as error:
        say(str(error))
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-score",
        usage="%(prog)s [PATH ...] [--out FILE] [options]",
        description="Class probabilities of many pictures, as CSV, JSON lines or Parquet.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_pictures(parser.add_argument_group("pictures"))
    _add_table(parser.add_argument_group("table"))
    _add_model(parser.add_argument_group("model"))
    return parser


def _add_pictures(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="file, folder, quoted pattern, archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz) or .parquet",
    )
    group.add_argument("--files-from", metavar="FILE", help="a list of further paths, one a line; - is stdin")
    group.add_argument(
        "--image-column",
        metavar="NAME",
        help="of Parquet files (default: the only one that can hold pictures)",
    )
    group.add_argument(
        "--id-column",
        metavar="NAME",
        help="of Parquet files: what rows are called (default: file and number)",
    )


def _add_table(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--out", default="-", metavar="FILE", help="table to write (default: -, stdout)")
    existing = group.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        dest="existing",
        action="store_const",
        const="resume",
        default="refuse",
        help="go on with the table if it has been begun",
    )
    existing.add_argument(
        "--overwrite", dest="existing", action="store_const", const="overwrite", help="begin it again"
    )
    group.add_argument(
        "--format",
        choices=["csv", "jsonl", "parquet"],
        help="default: as --out ends, .csv, .jsonl or .parquet; csv on stdout",
    )
    group.add_argument("--top-k", type=_whole, metavar="K", help="the K most probable classes (default: all)")
    group.add_argument(
        "--min-probability",
        type=_probability,
        metavar="P",
        help="what is confident is as probable as this (default: the model's own threshold)",
    )
    group.add_argument("--poses", action="store_true", help="the pose of every class, too")
    group.add_argument(
        "--errors",
        metavar="FILE",
        help="pictures without a row, as JSON lines (default: --out's name with .errors.jsonl)",
    )


def _add_model(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--url", metavar="URL", help=f"the service (default: {DEFAULT_URL})")
    group.add_argument(
        "--patience",
        type=_whole,
        default=PATIENCE_S,
        metavar="S",
        help=f"seconds to insist where the service is overloaded or gone (default: {PATIENCE_S})",
    )
    group.add_argument(
        "--local", action="store_true", help="run the model in this process, without a service"
    )
    group.add_argument(
        "--models",
        metavar="PATH",
        help="with --local: folders of bundles (default: $CAPSNET_MODELS, else models)",
    )
    group.add_argument("--model", metavar="NAME", help="default: the service's default model")
    group.add_argument(
        "--version",
        nargs="?",
        type=_whole,
        const=OF_THE_COMMAND,
        metavar="N",
        help="of the model (default: the newest); alone and without N it prints the command's own",
    )
    group.add_argument(
        "--preprocess",
        choices=["auto", "off"],
        default="auto",
        help="off: a plain resize instead of the model's own rule (default: auto)",
    )
    group.add_argument(
        "--batch", type=_whole, default=BATCH, metavar="N", help=f"pictures at a time (default: {BATCH})"
    )
    group.add_argument(
        "--concurrency",
        type=_whole,
        default=CONCURRENCY,
        metavar="N",
        help=f"batches in flight at once (default: {CONCURRENCY})",
    )


def _probability(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be 0 to 1, got {text!r}")
    return number


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return number
