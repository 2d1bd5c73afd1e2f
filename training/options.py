"""The command line's options: what they are called, which values they take, what --help says of them."""

import argparse
from collections.abc import Callable
from pathlib import Path

from export.contract.package_version import package_version
from training.config import presets
from training.config.run import SEEDS
from training.data.datasets import DATASETS, sources
from training.experiments import ALL_EXPERIMENTS, EXPERIMENTS

EXPERIMENTS_FOLDER = Path("runs/experiments")
NETWORKS_FOLDER = Path("runs/networks")
DESCRIPTION = "Train capsule networks, measure them, and reproduce the tables and figures of the papers."
EXAMPLES = """examples:
  capsnet-train download mnist                                  download MNIST into data/mnist
  capsnet-train make toys                                       render the toys into data/toys, no download
  capsnet-train fit --preset mnist --out runs/mnist             the paper's network, 300 epochs
  capsnet-train fit --preset mnist-short --out runs/short       the same network in 4 epochs, for a CPU
  capsnet-train fit --images pictures --out runs/own            your own: pictures/cat/1.jpg, pictures/dog/...
  capsnet-train fit --out runs/mnist --resume                   continue an interrupted run
  torchrun --nproc-per-node 4 -m training.cli fit --out runs/mnist        the same run on 4 GPUs
  capsnet-train evaluate runs/mnist                             test error of the run's best checkpoint
  capsnet-train inspect models/matrix-capsnet-toys              what EM routing does: do activations vary?
  capsnet-train experiment table1 --quick                       a table of the papers, in minutes
  capsnet-train report                                          all experiments on one page
"""


def whole(minimum: int, below: int = 2**63) -> Callable[[str], int]:
    """A type for whole numbers from `minimum` on."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or not minimum <= int(text) < below:
            up_to = "" if below == 2**63 else f" to {below - 1}"
            raise argparse.ArgumentTypeError(f"must be a whole number from {minimum}{up_to}, got {text}")
        return int(text)

    return whole_number


def positive(text: str) -> float:
    """A number above 0."""
    if not 0 < _number(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return float(text)


def fraction(text: str) -> float:
    """A number from 0 to below 1."""
    if not 0 <= _number(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to below 1, got {text}")
    return float(text)


def any_path(text: str) -> Path:
    """A path; the empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, got an empty text")
    return Path(text)


def utf8_path(text: str) -> Path:
    """A path that can be recorded: a run's files are JSON, and hold the command that started it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"must be a path in UTF-8, got {text!r}") from None
    return any_path(text)


def any_folder(text: str) -> Path:
    """A folder that exists or can be made."""
    if not text:
        raise argparse.ArgumentTypeError("must be a folder, got an empty text")
    path = utf8_path(text)
    try:
        file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    except OSError as error:  # a name that is too long, or a folder that may not be looked into
        raise argparse.ArgumentTypeError(f"must be a folder, got {text}: {error.strerror}") from None
    if file is not None:
        raise argparse.ArgumentTypeError(f"must be a folder, got {text}: {file} is a file")
    return path


def _number(text: str) -> float:
    """NaN for a text that is none, which lies in no range."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def parser() -> argparse.ArgumentParser:
    """The parser of `capsnet-train`; `command` of what it gives is the command's name."""
    whole_line = argparse.ArgumentParser(
        prog="capsnet-train",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"%(prog)s {package_version()}"
    whole_line.add_argument("--version", action="version", version=version)
    commands = whole_line.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _fit(commands.add_parser("fit", help="train a network, or continue a run"))
    _evaluate(commands.add_parser("evaluate", help="measure a run's best checkpoint on the test images"))
    _inspect(
        commands.add_parser(
            "inspect",
            help="measure what EM routing does in a network of matrix capsules",
            description="Measure the activations of matrix capsules in each layer and iteration of routing "
            "on validation images: standard deviation over the images (quartiles over the capsules), share "
            "saturated (below 0.01 or above 0.99), entropy of the assignments as a share of its maximum, "
            "mass assigned to a parent. Then error and answers when a layer's activations are frozen to "
            "their means.",
        )
    )
    _experiment(
        commands.add_parser(
            "experiment",
            help="reproduce a table or figure of the papers",
            description="Reproduce a table or figure of the papers:\n\n"
            + "\n".join(f"  {name:<13} {title}" for name, title in EXPERIMENTS.items()),
            epilog="An interrupted experiment continues when you run the same command again.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _report(commands.add_parser("report", help="join the results of all experiments into one page"))
    _download(commands.add_parser("download", help="download a data set"))
    _make(commands.add_parser("make", help="render a data set"))
    return whole_line


def _fit(command: argparse.ArgumentParser) -> None:
    what = command.add_argument_group("what to train")
    what.add_argument(
        "--preset",
        metavar="NAME|FILE",
        help="network, data and schedule: a file NAME.toml of your own, or (default: mnist; with --images: "
        f"images) one of: {', '.join(presets())}",
    )
    what.add_argument(
        "--images",
        type=any_path,
        metavar="FOLDER",
        help="train on your own pictures, one folder per class. With --resume: where the pictures are now",
    )
    what.add_argument(
        "--start-from",
        type=utf8_path,
        metavar="RUN|BUNDLE",
        help="start with the newest weights of another run (a decoder alone: with its best), or with a "
        "CapsNet bundle's (models/NAME)",
    )
    what.add_argument(
        "--seed",
        type=whole(0, SEEDS),
        metavar="N",
        help="random seed of weights, order and shifts (default: 0)",
    )
    what.add_argument(
        "--epochs", type=whole(1), metavar="N", help="passes over the training images (default: the preset's)"
    )
    what.add_argument(
        "--ema-decay",
        type=fraction,
        metavar="DECAY",
        help="evaluate and export an exponential moving average of the weights with this decay per step, "
        "such as 0.999; 0 turns it off (default: the preset's)",
    )
    run = command.add_argument_group("the run")
    run.add_argument("--out", type=any_folder, required=True, metavar="DIR", help="folder of the run")
    run.add_argument("--resume", action="store_true", help="continue from the newest checkpoint in --out")
    run.add_argument(
        "--max-minutes",
        type=positive,
        metavar="MINUTES",
        help="stop after this time, validation included; --resume continues (default: no limit)",
    )
    run.add_argument(
        "--checkpoint-minutes",
        type=positive,
        metavar="MINUTES",
        default=5.0,
        help="time between checkpoints (default: 5)",
    )
    _add_device(run)
    _add_data(run)


def _evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=any_path, metavar="RUN", help="folder of the run")
    command.add_argument(
        "--full",
        action="store_true",
        help="for multimnist: measure on 10 million test pairs, as the paper does, not on 10,000; "
        "for shifted-mnist: measure on affNIST, not on the affnist-style set",
    )
    command.add_argument(
        "--images",
        type=any_path,
        metavar="FOLDER",
        help="where your own pictures are, if they have moved",
    )
    _add_device(command)
    _add_data(command)


def _inspect(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "network", type=any_path, metavar="RUN|BUNDLE", help="folder of a run, or of a bundle (models/NAME)"
    )
    command.add_argument(
        "--count", type=whole(2), default=500, metavar="N", help="validation images to look at (default: 500)"
    )
    command.add_argument(
        "--images", type=any_path, metavar="FOLDER", help="of a run on your own pictures: where they are now"
    )
    command.add_argument("--json", action="store_true", help="print JSON, not a table")
    _add_device(command)
    _add_data(command)


def _experiment(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name",
        choices=[*EXPERIMENTS, ALL_EXPERIMENTS],
        metavar="NAME",
        help=f"one of the above, or {ALL_EXPERIMENTS}: every experiment whose data is available",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--quick",
        dest="form",
        action="store_const",
        const="quick",
        default="full",
        help="narrower networks and fewer images: at most 8 minutes on two cores",
    )
    form.add_argument(
        "--medium",
        dest="form",
        action="store_const",
        const="medium",
        help="hours of a CPU (table1: about 20), for table1, affnist, norb-ablation and attack: the networks "
        "of the full form, trained for fewer epochs; of affnist, networks of half the width",
    )
    command.add_argument(
        "--on",
        metavar="DATA",
        help="if an experiment has several data sets: use this one alone, such as toys",
    )
    command.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="if an experiment has several seeds: measure the networks of this one alone, so that several "
        "machines can share the work; then put their folders together, with all rows in one rows.jsonl",
    )
    command.add_argument(
        "--out",
        type=any_folder,
        metavar="DIR",
        help=f"folder of the experiment (default: {EXPERIMENTS_FOLDER}/NAME, NAME-medium or NAME-quick); "
        f"for {ALL_EXPERIMENTS}: the folder that holds all of them",
    )
    command.add_argument(
        "--networks",
        type=any_folder,
        metavar="DIR",
        default=NETWORKS_FOLDER,
        help=f"folder of the trained networks, which experiments share (default: {NETWORKS_FOLDER})",
    )
    _add_device(command)
    _add_data(command)


def _report(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder",
        type=any_path,
        nargs="?",
        metavar="DIR",
        default=EXPERIMENTS_FOLDER,
        help=f"holds the experiments' folders (default: {EXPERIMENTS_FOLDER})",
    )


def _download(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", choices=sorted(sources()))
    command.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="URL",
        help="try this folder before the known mirrors; may be given several times",
    )
    _add_data(command)


def _make(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name",
        choices=[name for name, spec in DATASETS.items() if spec.made],
        help="toys: rendered stereo pairs in smallNORB's format, 0.9 GB, takes minutes",
    )
    _add_data(command)


# argparse's groups and parsers share no public class but the container that has `add_argument`.
def _add_device(container: argparse._ActionsContainer) -> None:
    container.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto (default): cuda if available, else cpu",
    )


def _add_data(container: argparse._ActionsContainer) -> None:
    container.add_argument(
        "--data",
        type=any_folder,
        metavar="DIR",
        help="folder of all data sets, one folder each (default: $CAPSNET_DATA, else data)",
    )
