"""capsnet-train: fit, evaluate, experiment, report, download, make."""

import argparse
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

from training.config import RunConfig, load_preset, presets
from training.data.datasets import sources
from training.data.download import DownloadError, data_root, download
from training.data.readers.files import MissingDataError
from training.experiments import EXPERIMENTS
from training.option_types import any_folder, fraction, positive, whole, with_current_names

if TYPE_CHECKING:
    import torch

    from training.data.batches import Batches
    from training.fit.distributed import Processes
    from training.fit.loop import Trainer
    from training.runs.checkpoint import Progress

EXPERIMENTS_FOLDER = Path("runs/experiments")
NETWORKS_FOLDER = Path("runs/networks")
ALL_EXPERIMENTS = "all"
CHANGES = ("preset", "seed", "epochs", "ema_decay", "start_from")  # what a new run may be asked for
SHORT_PRESET = "mnist-short"  # for those who have no GPU
STOPPED_BY_SIGNAL = 130  # what a shell gives a command that SIGINT ended

EXAMPLES = """examples:
  capsnet-train download mnist                                  into data/mnist
  capsnet-train make toys                                       into data/toys, rendered: nothing to download
  capsnet-train fit --preset mnist --out runs/mnist             the paper's network, the paper's schedule
  capsnet-train fit --preset mnist-short --out runs/short       the same network in 4 epochs, for a CPU
  capsnet-train fit --images pictures --out runs/own            your own: pictures/cat/1.jpg, pictures/dog/...
  capsnet-train fit --out runs/mnist --resume                   go on where a run stopped
  torchrun --nproc-per-node 4 -m training.cli fit --out runs/mnist        the same run on 4 GPUs
  capsnet-train evaluate runs/mnist                             test error of its best checkpoint
  capsnet-train experiment table1 --quick                       a table or figure of the papers, in minutes
  capsnet-train report                                          join all experiments into one page
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's end with one line and status 2."""
    options = _parser().parse_args(with_current_names(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.exit(options.run_command(options))
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "safetensors", "tensorboard", "scipy", "matplotlib", "numba"}:
            raise
        _fail(f"this command needs {error.name}: pip install -e '.[train,cpu]'")
    except (ValueError, OSError, DownloadError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(STOPPED_BY_SIGNAL)


def _fail(message: str) -> None:
    print(f"capsnet-train: {message}", file=sys.stderr)
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-train",
        description="Train capsule networks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_version('capsnet')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    fit = commands.add_parser("fit", help="train a network, or go on with a run")
    fit.add_argument(
        "--preset", help=f"what to train: {', '.join(presets())} (default: mnist; images, with --images)"
    )
    fit.add_argument(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="train on your own pictures; it holds a folder per class. With --resume: where it lies now",
    )
    fit.add_argument("--out", type=any_folder, required=True, metavar="DIR", help="folder of the run")
    fit.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    fit.add_argument(
        "--start-from",
        type=Path,
        metavar="RUN|BUNDLE",
        help="begin with the newest weights of another run, or those of a CapsNet's bundle, models/NAME",
    )
    fit.add_argument("--seed", type=whole(0), help="of weights, order and shifts (default: the preset's, 0)")
    fit.add_argument(
        "--epochs", type=whole(1), help="passes over the training images (default: the preset's)"
    )
    fit.add_argument(
        "--ema-decay",
        type=fraction,
        metavar="DECAY",
        help="measure and export an exponential moving average of the weights with this decay per step, such "
        "as 0.999; 0 takes the weights themselves (default: the preset's)",
    )
    fit.add_argument("--max-minutes", type=positive, help="stop with a checkpoint after so much training")
    fit.add_argument(
        "--checkpoint-minutes",
        type=positive,
        default=5.0,
        help="between checkpoints (default 5)",
    )
    _add_device(fit)
    _add_data(fit)
    fit.set_defaults(run_command=_fit)

    evaluate = commands.add_parser("evaluate", help="measure a run's best checkpoint on the test images")
    evaluate.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    evaluate.add_argument(
        "--full",
        action="store_true",
        help="of multimnist 10 million test pairs, as many as the paper's, not 10,000; of affnist, affNIST",
    )
    evaluate.add_argument(
        "--images", type=Path, metavar="FOLDER", help="of a run on your own pictures: where they lie now"
    )
    _add_device(evaluate)
    _add_data(evaluate)
    evaluate.set_defaults(run_command=_evaluate)

    experiment = commands.add_parser(
        "experiment",
        help="reproduce a table or a figure of the papers",
        description="Reproduce a table or a figure of the papers:\n\n"
        + "\n".join(f"  {name:<13} {title}" for name, title in EXPERIMENTS.items()),
        epilog="Stopped at any moment, the same command goes on where it was.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    experiment.add_argument(
        "name",
        choices=[*EXPERIMENTS, ALL_EXPERIMENTS],
        metavar="NAME",
        help=f"one of those above; {ALL_EXPERIMENTS}: every one whose data is there",
    )
    experiment.add_argument(
        "--quick", action="store_true", help="at most 8 minutes on two cores: narrower networks, fewer images"
    )
    experiment.add_argument(
        "--on",
        metavar="DATA",
        help="where an experiment has a part for each of several data sets, the part on this one alone, "
        "such as toys",
    )
    experiment.add_argument(
        "--out",
        type=any_folder,
        metavar="DIR",
        help=f"default: {EXPERIMENTS_FOLDER}/NAME, or NAME-quick; of all, the folder that holds these",
    )
    experiment.add_argument(
        "--networks",
        type=any_folder,
        metavar="DIR",
        default=NETWORKS_FOLDER,
        help=f"runs that experiments share, so that none is trained twice (default: {NETWORKS_FOLDER})",
    )
    _add_device(experiment)
    _add_data(experiment)
    experiment.set_defaults(run_command=_experiment)

    report = commands.add_parser("report", help="join what experiments have found into one page")
    report.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        default=EXPERIMENTS_FOLDER,
        help=f"holds the experiments' folders (default: {EXPERIMENTS_FOLDER})",
    )
    report.set_defaults(run_command=_report)

    get = commands.add_parser("download", help="download a data set")
    get.add_argument("name", choices=sorted(sources()))
    get.add_argument(
        "--mirror", action="append", default=[], metavar="URL", help="try this folder first; repeatable"
    )
    _add_data(get)
    get.set_defaults(run_command=_download)

    made = commands.add_parser("make", help="make a data set that the repository draws itself")
    made.add_argument(
        "name", choices=["toys"], help="stereo pairs of toys in smallNORB's form; 0.9 GB, minutes"
    )
    _add_data(made)
    made.set_defaults(run_command=_make)
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda if there is one"
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=any_folder,
        metavar="DIR",
        help="one folder per data set (default: $CAPSNET_DATA, else data)",
    )


def _device(name: str) -> "torch.device":
    """The device asked for, or an error; never another one."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError("--device cuda: this machine has no CUDA device that torch can use")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _fit(options: argparse.Namespace) -> int:
    from training.fit.distributed import own_device, together

    config = _configuration(options)
    device = own_device(_device(options.device))
    with together(device) as processes:
        trainer, finished = _train(options, config, device, processes)
    if not finished:
        if processes.first:
            alone, together_ = "capsnet-train", f"torchrun --nproc-per-node {processes.count} -m training.cli"
            command = f"{alone if processes.count == 1 else together_} fit --out {options.out} --resume"
            print(f"stopped at step {trainer.progress.step}; go on with: {command}")
        return STOPPED_BY_SIGNAL if trainer.interrupted else 0
    if processes.first:
        print(_finished(options.out, trainer.progress))
    return 0


def _finished(run: Path, progress: "Progress") -> str:
    """What a finished run has come to by what was held out of it; the test set stays untouched."""
    found = f"finished at step {progress.step}: "
    if progress.best_error_percent is None:
        found += "nothing was held out, the last weights are the result"
    else:
        found += f"validation error {progress.best_error_percent:.2f} % at step {progress.best_step}"
    return f"{found}; capsnet-train evaluate {run} measures it on the test set"


def _configuration(options: argparse.Namespace) -> RunConfig:
    """Of a new run, or of the one to go on with, which changes nothing of it."""
    from training.runs import run_config

    changes = {name: getattr(options, name) for name in CHANGES if getattr(options, name) is not None}
    if not options.resume:
        return run_config.begin(options.out, images=options.images, **changes)
    if changes:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in changes)
        raise ValueError(f"{named}: a resumed run keeps what it was started with")
    return run_config.resume(options.out, options.images)


def _train(
    options: argparse.Namespace, config: RunConfig, device: "torch.device", processes: "Processes"
) -> tuple["Trainer", bool]:
    """Train, alone or with others; gives the trainer and whether the run is finished."""
    from training.data.batches import training_batches
    from training.fit.loop import Limits
    from training.fit.session import training_session
    from training.runs.run_config import first_weights

    first = first_weights(config, options.start_from) if options.start_from else None
    train, validation = training_batches(config, data_root(options.data))
    none_named = not (options.preset or options.images or options.resume)
    if none_named and device.type == "cpu" and processes.count == 1:
        print(_without_preset(config, train), file=sys.stderr)
    limits = Limits(options.max_minutes, options.checkpoint_minutes)
    with training_session(options.out, config, device, processes, first, new=not options.resume) as trainer:
        if processes.first:
            held_out = 0 if validation is None else len(validation)
            hardware = trainer.session.hardware
            print(f"{config.preset}: {len(train)} images, {held_out} held out, on {hardware}")
        return trainer, trainer.fit(train, validation, limits)


def _without_preset(config: RunConfig, train: "Batches") -> str:
    """What to expect of the preset that nobody asked for, on a machine that it is not meant for."""
    from training.fit.estimate import hours_of_epoch

    hours, short = hours_of_epoch(config, train), load_preset(SHORT_PRESET).optimizer.epochs
    return (
        f"no --preset is named: {config.preset}, whose {config.optimizer.epochs} epochs take about "
        f"{_duration(config.optimizer.epochs * hours)} on this CPU; --preset {SHORT_PRESET} trains the same "
        f"network in {short}, about {_duration(short * hours)}"
    )


def _duration(hours: float) -> str:
    """In words, rounded as an estimate is."""
    if hours >= 48:
        return f"{hours / 24:.0f} days"
    return f"{hours:.0f} hours" if hours >= 2 else f"{max(60 * hours, 1):.0f} minutes"


def _evaluate(options: argparse.Namespace) -> int:
    from training.runs import result

    device = _device(options.device)
    root = data_root(options.data)
    print(result.measure(options.run, root, device, options.images, full=options.full))
    return 0


def _experiment(options: argparse.Namespace) -> int:
    if options.name != ALL_EXPERIMENTS:
        out = options.out or EXPERIMENTS_FOLDER / _form(options.name, options.quick)
        _run_experiment(options.name, out, options)
        return 0
    if options.on:
        raise ValueError(f"--on {options.on} goes with one experiment, not with {ALL_EXPERIMENTS}")
    _run_all_experiments(options)
    return 0


def _run_all_experiments(options: argparse.Namespace) -> None:
    """Run every experiment whose data is there; say at the end which were left out."""
    from training.experiments.run import MeasuredInPartError

    in_part: list[str] = []
    skipped: list[str] = []
    for name in EXPERIMENTS:
        try:
            _run_experiment(name, (options.out or EXPERIMENTS_FOLDER) / _form(name, options.quick), options)
        except MissingDataError as error:
            print(f"{name}: {error}", file=sys.stderr)
            (in_part if isinstance(error, MeasuredInPartError) else skipped).append(name)
        except (ValueError, OSError):
            print(f"{name} ends with an error:", file=sys.stderr)
            raise
    if in_part:
        print(f"measured in part, as some of their data is not there: {', '.join(in_part)}")
    if skipped:
        print(f"skipped, as their data is not there: {', '.join(skipped)}")
    if len(skipped) == len(EXPERIMENTS):
        raise ValueError("there is no data for any experiment")


def _form(name: str, quick: bool) -> str:
    return f"{name}-quick" if quick else name


def _run_experiment(name: str, out: Path, options: argparse.Namespace) -> None:
    """An experiment, its report printed."""
    from training.experiments.run import run_experiment
    from training.experiments.runner import Runner

    runner = Runner(out, options.networks, data_root(options.data), _device(options.device))
    try:
        report = run_experiment(name, runner, options.quick, options.on)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on where {name} was")
        raise
    print(f"{report.read_text()}\nwrote {report}")


def _report(options: argparse.Namespace) -> int:
    from training.experiments.run import write_page

    print(f"wrote {write_page(options.folder)}")
    return 0


def _download(options: argparse.Namespace) -> int:
    download(sources()[options.name], data_root(options.data), options.mirror)
    return 0


def _make(options: argparse.Namespace) -> int:
    from training.data.synthetic.toys.make import make

    print(f"made {make(data_root(options.data))}")
    return 0


if __name__ == "__main__":
    main()
