"""capsnet-train: fit, evaluate, inspect, experiment, report, download, make."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from export.contract.ctrl_c import STOPPED_BY_SIGNAL
from export.contract.extras import TRAINING, naming_the_extra
from export.contract.one_line import first_line, is_out_of_memory, one_line
from training.config import RunConfig, load_preset
from training.data.datasets import sources
from training.data.download import DownloadError, data_root, download
from training.data.readers.files import MissingDataError
from training.experiments import ALL_EXPERIMENTS, EXPERIMENTS
from training.experiments.form import folder_name
from training.options import EXPERIMENTS_FOLDER, parser
from training.unread_output import unread_output_ignored

if TYPE_CHECKING:
    import torch

    from training.data.batches import Batches
    from training.fit.copies import Copies
    from training.fit.distributed import Processes
    from training.runs.checkpoint import Progress

CHANGES = ("preset", "seed", "epochs", "ema_decay", "start_from")  # options that a new run alone takes
SHORT_PRESET = "mnist-short"  # for a CPU
FORMER_WORKER_S = 60  # that torchrun has told to stop, or that has lost it, may take to end


class Ended(NamedTuple):
    """How a training ended: how far it is, whether that is all of it, and whether a signal stopped it."""

    progress: "Progress"
    finished: bool
    interrupted: bool


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's error ends with one line and status 2."""
    options = parser().parse_args(arguments)
    commands = {
        "fit": _fit,
        "evaluate": _evaluate,
        "inspect": _inspect,
        "experiment": _experiment,
        "report": _report,
        "download": _download,
        "make": _make,
    }
    with unread_output_ignored(), naming_the_extra("capsnet-train", TRAINING):
        try:
            sys.exit(commands[options.command](options))
        except (ValueError, OSError, DownloadError) as error:
            _fail(one_line(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            _fail(
                f"this does not fit into memory: {first_line(error)}; take a smaller network, smaller "
                "images, or a smaller optimizer.batch_size"
            )
        except KeyboardInterrupt:
            sys.exit(STOPPED_BY_SIGNAL)


def _fail(message: str) -> None:
    print(f"capsnet-train: {message}", file=sys.stderr)
    sys.exit(2)


def _device(name: str) -> "torch.device":
    """The requested device, or an error; never another one."""
    import torch

    from training.fit.memory import keep_freed_memory
    from training.models.cuda.device import use_full_float32

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError("--device cuda: this machine has no CUDA device that torch can use")
    use_full_float32()
    keep_freed_memory()
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _fit(options: argparse.Namespace) -> int:
    from training.fit.distributed import own_device, together

    device = own_device(_device(options.device))
    with together(device) as processes:
        ended = _start_or_go_on(options, device, processes)
    if not ended.finished:
        if processes.first:
            print(f"stopped at step {ended.progress.step}; {_how_to_continue(options)}")
        return STOPPED_BY_SIGNAL if ended.interrupted else 0
    if processes.first:
        print(_finished(options, ended.progress))
    return 0


def _start_or_go_on(options: argparse.Namespace, device: "torch.device", processes: "Processes") -> Ended:
    """Train; under torchrun, which repeats its command, go on from the newest checkpoint of any machine."""
    from training.fit.copies import held_copies
    from training.fit.distributed import started_by_torchrun
    from training.runs import run_config

    if not started_by_torchrun():
        config = _configuration(options, run_config.new_config)
        return _train(options, config, device, processes, new=not options.resume)
    with held_copies(options.out, processes, FORMER_WORKER_S) as copies:
        config = _configuration(options, run_config.new_or_matching_config)
        config = copies.agree_on(config)
        return _train(options, config, device, processes, copies=copies)


def _how_to_continue(options: argparse.Namespace) -> str:
    """What continues a run that was stopped."""
    from training.fit.distributed import started_by_torchrun
    from training.runs.provenance import machines, program

    if machines() > 1:  # each has options of torchrun that only it knows
        return "the same command on every machine continues it"
    start = program() if started_by_torchrun() else ["capsnet-train"]
    command = shlex.join([*start, "fit", "--out", str(options.out), "--resume", *_where(options)])
    return f"continue with: {command}"


def _where(options: argparse.Namespace) -> list[str]:
    """The options that a further command for the same run needs as well."""
    data = [] if options.data is None else ["--data", str(options.data)]
    return data + ([] if options.device == "auto" else ["--device", options.device])


def _finished(options: argparse.Namespace, progress: "Progress") -> str:
    """A finished run's validation error; the test set stays untouched."""
    found = f"finished at step {progress.step}: "
    if progress.best_error_percent is None:
        found += "no validation error is known, so the last weights are the result"
    else:
        found += f"validation error {progress.best_error_percent:.2f} % at step {progress.best_step}"
    command = shlex.join(["capsnet-train", "evaluate", str(options.out), *_where(options)])
    return f"{found}; {command} measures it on the test set"


def _configuration(options: argparse.Namespace, begin: Callable[..., RunConfig]) -> RunConfig:
    """That of a new run, as `begin` gives it, or of the run to resume, which options cannot change."""
    from training.runs import run_config

    changes = {name: getattr(options, name) for name in CHANGES if getattr(options, name) is not None}
    if not options.resume:
        return begin(options.out, images=options.images, **changes)
    if changes:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in changes)
        raise ValueError(f"{named}: a resumed run keeps the values that it was started with")
    return run_config.resumed_config(options.out, options.images)


def _train(
    options: argparse.Namespace,
    config: RunConfig,
    device: "torch.device",
    processes: "Processes",
    new: bool = False,
    copies: "Copies | None" = None,
) -> Ended:
    """Train, in one or several processes."""
    from training.data.run_images import training_batches
    from training.fit.loop import Limits
    from training.fit.session import training_session
    from training.runs.checkpoint import newest_checkpoint
    from training.runs.run_config import initial_weights

    begins = options.start_from is not None and newest_checkpoint(options.out) is None
    first = initial_weights(config, options.start_from) if begins else None
    train, validation = training_batches(config, data_root(options.data))
    none_named = not (options.preset or options.images or options.resume)
    if none_named and device.type == "cpu" and processes.count == 1:
        print(_without_preset(config, train), file=sys.stderr)
    limits = Limits(options.max_minutes, options.checkpoint_minutes)
    with training_session(options.out, config, device, processes, first, new, copies) as trainer:
        if processes.first:
            held_out = 0 if validation is None else len(validation)
            hardware = trainer.session.hardware
            images = f"{len(train)} images" + (" an epoch" if config.data.epoch_images else "")
            print(f"{config.preset}: {images}, {held_out} held out, on {hardware}")
            if options.start_from and not begins:
                print(f"{options.out} goes on; --start-from was read once, at its start")
        finished = trainer.fit(train, validation, limits)
        return Ended(trainer.progress, finished, trainer.interrupted)


def _without_preset(config: RunConfig, train: "Batches") -> str:
    """How long the default preset takes on a CPU, and which one is meant for it."""
    from training.fit.estimate import hours_of_epoch

    hours, short = hours_of_epoch(config, train), load_preset(SHORT_PRESET).optimizer.epochs
    epochs = "one epoch takes" if config.optimizer.epochs == 1 else f"{config.optimizer.epochs} epochs take"
    return (
        f"no --preset given: {config.preset}, whose {epochs} about "
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


def _inspect(options: argparse.Namespace) -> int:
    from training.runs.inspection import as_json, as_table, inspect_network

    device = _device(options.device)
    found = inspect_network(options.network, data_root(options.data), device, options.count, options.images)
    print(as_json(found) if options.json else as_table(found))
    return 0


def _experiment(options: argparse.Namespace) -> int:
    if options.name != ALL_EXPERIMENTS:
        out = options.out or EXPERIMENTS_FOLDER / folder_name(options.name, options.form)
        _run_experiment(options.name, out, options)
        return 0
    for given, option in (
        (options.on, f"--on {options.on}"),
        (options.seed is not None, f"--seed {options.seed}"),
        (options.form == "medium", "--medium"),
    ):
        if given:
            raise ValueError(f"{option} goes with one experiment, not with {ALL_EXPERIMENTS}")
    _run_all_experiments(options)
    return 0


def _run_all_experiments(options: argparse.Namespace) -> None:
    """Run every experiment whose data is available; say at the end which were left out."""
    from training.experiments.command import MeasuredInPartError

    in_part: list[str] = []
    skipped: list[str] = []
    for name in EXPERIMENTS:
        try:
            out = (options.out or EXPERIMENTS_FOLDER) / folder_name(name, options.form)
            _run_experiment(name, out, options)
        except MissingDataError as error:
            print(f"{name}: {error}", file=sys.stderr)
            (in_part if isinstance(error, MeasuredInPartError) else skipped).append(name)
        except (ValueError, OSError):
            print(f"{name} failed:", file=sys.stderr)
            raise
    if in_part:
        print(f"measured in part, because some of their data is missing: {', '.join(in_part)}")
    if skipped:
        print(f"skipped, because their data is missing: {', '.join(skipped)}")
    if len(skipped) == len(EXPERIMENTS):
        raise ValueError("no experiment has its data")


def _run_experiment(name: str, out: Path, options: argparse.Namespace) -> None:
    """Run an experiment and print its report."""
    from training.experiments.command import run_experiment
    from training.experiments.runner import Runner

    runner = Runner(out, options.networks, data_root(options.data), _device(options.device))
    try:
        report = run_experiment(name, runner, options.form, options.on, options.seed)
    except KeyboardInterrupt:
        print(f"stopped; the same command continues {name}")
        raise
    print(f"{report.read_text()}\nwrote {report}")


def _report(options: argparse.Namespace) -> int:
    from training.experiments.command import write_page

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
