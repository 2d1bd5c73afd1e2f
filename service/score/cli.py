"""The command line of capsnet-score.

Exit status: 0 every picture has a row; 1 some were skipped; 2 wrong usage, no service or nothing scored; 3 a
fault of its own (see `service.score`); 130 interrupted with Ctrl-C, or with --ray by SIGTERM; 141 the reader
of stdout has gone. In every case the rows already written stay; in a file or folder, --resume continues
from there.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from capsnet import DEFAULT_URL
from export.contract.ctrl_c import STOPPED_BY_SIGNAL
from export.contract.one_line import one_line
from export.contract.package_version import package_version
from service.score.closed_streams import stand_in_for_closed_streams
from service.score.output import record_beside
from service.score.query import ScoreError
from service.score.run import score
from service.score.terminal import say
from service.settings import SettingsError

BATCH = 32
CONCURRENCY = 4
RETRY_TIMEOUT_S = 120
PART_SIZE = 4096
COMMAND_VERSION = 0  # no model has this version
READER_GONE = 141  # as STOPPED_BY_SIGNAL, for SIGPIPE

EXAMPLES = """examples:
  capsnet-score 7.png                                           one picture, to the terminal
  capsnet-score digits/ --out scores.csv                        all pictures in a folder and its subfolders
  capsnet-score 'scans/**/*.png' --out scores.jsonl             a pattern; quoted, it may match any number
  capsnet-score scans.tar.gz more.zip --out scores.parquet      archives, without unpacking them
  capsnet-score 'set/*.parquet' --out scores.csv --poses        pictures in Parquet files; poses in the table
  find / -name '*.png' | capsnet-score --files-from - --out scores.csv
  capsnet-score digits/ --out scores.csv --resume               continue after a crash, or start
  capsnet-score digits/ --out scores.csv --url http://gpu:8001  a service elsewhere
  capsnet-score digits/ --out scores.csv --local                no service: run the model in this process
  capsnet-score s3://bucket/scans --ray --out s3://bucket/scores    a Ray cluster; a folder of Parquet files
  capsnet-score 1_left.png 1_right.png --model matrix-capsnet-toys
                                                                one stereo pair, one row

In folders, archives and patterns, only files with the suffix of a picture are scored, and none whose name
begins with a dot. Links to folders are not followed, except by * in a pattern. Folders are sorted; archives
keep their own order. A folder that cannot be read is listed like a picture without a row; only * in a pattern
passes over it. A file that is named itself counts whatever its suffix. Rows of Parquet files are named
set.parquet#12; files in archives, scans.zip/a/7.png.

For a model of two views, two neighbors in that order are a pair, the left view first, as in a folder of
1_left.png, 1_right.png, 2_left.png, ... A pair has one row, named by both files. Both files of a pair are in
the same folder, on disk or in an archive, or in the same Parquet file; in a list (--files-from) they may be
anywhere. An odd number of pictures is an error before anything is scored. In a tar archive, a Parquet file or
a list from a pipe the number is known only at the end: there the last picture gets no row.

A row is confident if its picture is not blank and all classes that it names are probable enough: they reach
the model's own threshold (`confidence` in its manifest) or --min-probability.

Pictures without a row are listed with the reasons in scores.csv.errors.jsonl beside the table, or on stderr
if rows go to stdout. scores.csv.run.json says how far a run is and with which options; --resume needs the
same pictures in the same order. The environment variable CAPSNET_API_KEY holds the key for the service.

exit status: 0 every picture has a row, 1 some were skipped, 2 wrong usage, no service, or nothing was scored,
3 a fault of capsnet-score itself, with its traceback
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake ends it with one line and status 2."""
    stand_in_for_closed_streams()
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version == COMMAND_VERSION:
        if options != parser.parse_args(["--version"]):
            parser.error("--version of a model needs a number; without one it must be the only argument")
        print(f"capsnet-score {package_version()}")
        sys.exit(0)
    # Warnings, such as versions that cannot be loaded.
    logging.basicConfig(format="capsnet-score: %(message)s")
    try:
        sys.exit(_run(options))
    except KeyboardInterrupt:
        remedy = "; continue with --resume" if _has_record(options) else ""
        say(f"interrupted; the rows written so far stay{remedy}")
        if options.ray:
            os._exit(STOPPED_BY_SIGNAL)  # see `ray_run`
        sys.exit(STOPPED_BY_SIGNAL)
    except BrokenPipeError:  # by `| head`, for example
        # So that the flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(READER_GONE)
    except (ScoreError, SettingsError, OSError) as error:
        say(one_line(error))
        sys.exit(2)


def _has_record(options: argparse.Namespace) -> bool:
    """Whether a run can be continued: not if rows went to stdout, a pipe or a device."""
    if options.ray:
        return True
    if options.out == "-" or options.existing == "overwrite":  # the record may be that of an earlier run
        return False
    return record_beside(Path(options.out)).exists()


def _run(options: argparse.Namespace) -> int:
    if not options.ray:
        if options.part_size is not None:
            raise ScoreError("--part-size needs --ray, whose table is a folder of files")
        return score(options)
    options.part_size = options.part_size or PART_SIZE
    from service.score.ray_run import score_on_ray  # Ray is an extra, and takes seconds to import

    return score_on_ray(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-score",
        usage="%(prog)s [PATH ...] [--out FILE] [options]",
        description="Write the class probabilities of many pictures as CSV, JSON lines or Parquet.",
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
    group.add_argument(
        "--files-from", metavar="FILE", help="file with further paths, one per line; - is stdin"
    )
    group.add_argument(
        "--image-column",
        metavar="NAME",
        help="column of Parquet files with the pictures (default: the only one that can hold some)",
    )
    group.add_argument(
        "--id-column",
        metavar="NAME",
        help="column of Parquet files with the names of the rows (default: file and row number)",
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
        help="continue the table if it exists",
    )
    existing.add_argument(
        "--overwrite",
        dest="existing",
        action="store_const",
        const="overwrite",
        help="start over if the table exists",
    )
    group.add_argument(
        "--format",
        choices=["csv", "jsonl", "parquet"],
        help="of the table (default: by the suffix of --out; csv on stdout)",
    )
    group.add_argument(
        "--top-k", type=_positive_integer, metavar="K", help="only the K most probable classes (default: all)"
    )
    group.add_argument(
        "--min-probability",
        type=_probability,
        metavar="P",
        help="minimum probability of a confident row (default: the model's own threshold)",
    )
    group.add_argument("--poses", action="store_true", help="also write the pose of every class")
    group.add_argument(
        "--part-size",
        type=_positive_integer,
        metavar="N",
        help=f"with --ray: pictures in each file of the table (default: {PART_SIZE})",
    )
    group.add_argument(
        "--errors",
        metavar="FILE",
        help="JSON lines of the pictures without a row (default: --out with .errors.jsonl appended)",
    )


def _add_model(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--url", metavar="URL", help=f"of the service (default: {DEFAULT_URL})")
    group.add_argument(
        "--retry-timeout",
        type=_positive_integer,
        default=RETRY_TIMEOUT_S,
        metavar="S",
        help="how long to repeat a request while the service is overloaded, broken or away, in seconds "
        f"(default: {RETRY_TIMEOUT_S})",
    )
    group.add_argument("--local", action="store_true", help="run the model in this process; needs no service")
    group.add_argument(
        "--ray",
        action="store_true",
        help="run the model in the processes of a Ray cluster ($RAY_ADDRESS, else this machine)",
    )
    group.add_argument(
        "--models",
        metavar="PATH",
        help="with --local and --ray: folders of bundles (default: $CAPSNET_MODELS, else models)",
    )
    group.add_argument(
        "--model", metavar="NAME", help="name of the model (default: the service's default model)"
    )
    group.add_argument(
        "--version",
        nargs="?",
        type=_positive_integer,
        const=COMMAND_VERSION,
        metavar="N",
        help="of the model (default: the newest, or the pinned one); without N: print the command's own",
    )
    group.add_argument(
        "--preprocess",
        choices=["auto", "off"],
        default="auto",
        help="auto: the model's own rule for pictures of other sizes; off: a plain resize (default: auto)",
    )
    group.add_argument(
        "--batch",
        type=_positive_integer,
        default=BATCH,
        metavar="N",
        help=f"pictures per request (default: {BATCH})",
    )
    group.add_argument(
        "--concurrency",
        type=_positive_integer,
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
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text!r}")
    return number


def _positive_integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return number
