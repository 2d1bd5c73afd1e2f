"""capsnet-export: bundle, evaluate, threshold, optimize, triton."""

import argparse
import sys
from pathlib import Path
from signal import SIGTERM, signal
from typing import TYPE_CHECKING

from export.contract.ctrl_c import STOPPED_BY_SIGNAL
from export.contract.extras import TRAINING, naming_the_extra
from export.contract.manifest import newest_version
from export.contract.one_line import first_line, is_out_of_memory, one_line
from export.contract.package_version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from training.evaluate.metrics import Errors

MAX_THREADS = 1024

EXAMPLES = """examples:
  capsnet-export bundle runs/mnist --out models/capsnet-mnist    publish the run as the next version
  capsnet-export evaluate models/capsnet-mnist                   test error of the newest version
  capsnet-export threshold models/capsnet-mnist                  measure the threshold of confident answers
  capsnet-export optimize models/capsnet-mnist                   write faster graphs for CPUs, compare them
  capsnet-export triton models/capsnet-mnist --out triton        write it into a Triton model repository
"""

OPTIMIZE_EXAMPLES = """examples:
  capsnet-export optimize models/capsnet-mnist                   the newest, into optimized/capsnet-mnist
  capsnet-export optimize models/capsnet-mnist/4 --threads 1     measured on one core
  capsnet-export optimize models/capsnet-mnist --half            and float16 for GPUs, on the test images

The service derives these graphs itself when it loads a bundle on a CPU. This command writes them for
inspection or for other runtimes. They have the plain graph's inputs and outputs.
"""

TRITON_EXAMPLES = """examples:
  capsnet-export triton models/capsnet-mnist --out triton                    the newest version, for CPUs
  capsnet-export triton models/capsnet-mnist/4 --out triton --device gpu     add version 4, all on GPUs now
  tritonserver --model-repository=triton                                     serve it (24.05 or later)

A repository that is there may hold other models and versions; they stay. The configuration of the exported
model's folders is written anew.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's end with one line and status 2."""
    options = _parser().parse_args(arguments)
    signal(SIGTERM, lambda *_: sys.exit(128 + SIGTERM))  # so that what is half written is removed
    try:
        with naming_the_extra("capsnet-export", TRAINING):
            options.run_command(options)
    except (ValueError, OSError) as error:
        _fail(one_line(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(f"this does not fit into memory: {first_line(error)}")
    except KeyboardInterrupt:
        sys.exit(STOPPED_BY_SIGNAL)


def _fail(message: str) -> None:
    print(f"capsnet-export: {message}", file=sys.stderr)
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-export",
        description="Turn a training run into a bundle of static ONNX graphs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    bundle = commands.add_parser("bundle", help="export a run and publish it as the next version of a model")
    bundle.add_argument("run", type=Path, metavar="RUN", help="folder of a run of capsnet-train")
    bundle.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the model's folder, models/NAME"
    )
    bundle.add_argument(
        "--remark",
        metavar="TEXT",
        help="what the run cannot know and the model card should say, such as how it was chosen among others",
    )
    _add_images(bundle)
    _add_data(bundle)
    bundle.set_defaults(run_command=_bundle)

    evaluate = commands.add_parser("evaluate", help="measure a bundle on the test images of its data set")
    _add_bundle(evaluate)
    _add_images(evaluate)
    _add_data(evaluate)
    evaluate.set_defaults(run_command=_evaluate)

    threshold = commands.add_parser(
        "threshold",
        help="measure the probability from which answers are confident",
        description="Measure the probability that 99 % of a bundle's right answers reach, on the images that "
        "were held out of its training, and print it. `capsnet-export bundle` measures it first.",
    )
    _add_bundle(threshold)
    _add_images(threshold)
    _add_data(threshold)
    threshold.set_defaults(run_command=_threshold)
    _add_optimize(commands)
    _add_triton(commands)
    return parser


def _add_optimize(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    optimize = commands.add_parser(
        "optimize",
        help="write faster graphs of a bundle's encoder, with their error and speed",
        description="Write faster variants of a bundle's encoder for CPUs, and print their speed and the "
        "largest difference of their outputs from those of the bundle's own graph.",
        epilog=OPTIMIZE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_bundle(optimize)
    optimize.add_argument(
        "--out", type=Path, metavar="DIR", help="default: optimized/NAME, by the model's name"
    )
    optimize.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of a run (default: one per usable CPU)",
    )
    optimize.add_argument(
        "--half",
        action="store_true",
        help="also write half.onnx for GPUs and check it on the test images (takes minutes)",
    )
    _add_images(optimize)
    _add_data(optimize)
    optimize.set_defaults(run_command=_optimize)


def _add_triton(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    triton = commands.add_parser(
        "triton",
        help="write a bundle into a model repository of Triton Inference Server",
        description="Write a bundle into a model repository of Triton Inference Server: encoder, decoder and "
        "an ensemble from pixels to the winner's reconstruction.",
        epilog=TRITON_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_bundle(triton)
    triton.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model repository")
    triton.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        default="cpu",
        help="where the graphs run; gpu: Triton 24.08 or later (default: cpu)",
    )
    triton.add_argument(
        "--max-batch", type=int, default=32, metavar="N", help="maximum batch size (default: 32)"
    )
    triton.set_defaults(run_command=_triton)


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bundle", type=Path, metavar="BUNDLE", help="models/NAME (its newest version) or models/NAME/1"
    )


def _add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="folder of your own pictures that it was trained on (default: where they were in training)",
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="one folder per data set (default: $CAPSNET_DATA, else data)"
    )


def _bundle(options: argparse.Namespace) -> None:
    from export.bundle import publish
    from training.data.download import data_root

    published = publish(options.run, options.out, data_root(options.data), options.images, options.remark)
    print(f"parity: PyTorch and ONNX Runtime agree to {published.parity_error:.1e}")
    print(_as_text(published.test))
    print(f"published {published.path}")


def _evaluate(options: argparse.Namespace) -> None:
    from export.evaluate import evaluate_bundle
    from training.data.download import data_root

    bundle = newest_version(options.bundle)
    found = evaluate_bundle(bundle, data_root(options.data), options.images)
    print(f"{bundle}: {_as_text(found)}")


def _threshold(options: argparse.Namespace) -> None:
    from export.confidence import measure_again
    from training.data.download import data_root

    found = measure_again(newest_version(options.bundle), data_root(options.data), options.images)
    print(
        f"threshold {found.min_probability:g}: reached by {found.right_confident} of {found.right} right "
        f"answers and {found.wrong_confident} of {found.wrong} wrong ones ({found.data})"
    )


def _as_text(test: "Errors") -> str:
    text = f"test error {test.error_percent:.2f} % ({test.errors} of {test.images})"
    if test.objects == test.images:
        return text
    return f"{text}; {test.object_error_percent:.2f} % of their {test.objects} objects"


def _optimize(options: argparse.Namespace) -> None:
    from export.contract.manifest import read_manifest
    from export.contract.processors import usable_cpus
    from export.optimize.half_precision import check_architecture
    from export.optimize.report import NothingFasterError, as_table, optimize_bundle
    from export.published import refuse_in_published

    if not 0 <= options.threads <= MAX_THREADS:
        raise ValueError(f"--threads must be 0 (one per usable CPU) to {MAX_THREADS}, got {options.threads}")
    bundle = newest_version(options.bundle)
    manifest = read_manifest(bundle)
    out = options.out or Path("optimized") / manifest.model
    refuse_in_published(out)
    test: Iterator[NDArray[np.float32]] = iter(())
    if options.half:  # what is missing is told before minutes of measuring
        check_architecture(manifest.architecture)
        test = _test_pixels(bundle, options)
    try:
        report = optimize_bundle(bundle, out, options.threads or usable_cpus())
    except NothingFasterError as error:
        if not options.half:
            raise
        print(error)
    else:
        print(*as_table(report), sep="\n")
        print(f"the fastest: {report.choice}")
        files = [str(found.file) for name, found in report.variants.items() if name != "plain"]
        print(f"wrote {', '.join(files)}")
    if options.half:
        _write_half(bundle, out, test)


def _test_pixels(bundle: Path, options: argparse.Namespace) -> "Iterator[NDArray[np.float32]]":
    from export.contract.manifest import read_manifest
    from export.evaluate import config_to_measure, test_pixels
    from training.data.download import data_root
    from training.data.own_pictures import find_again

    config = find_again(config_to_measure(read_manifest(bundle)), options.images, bundle)
    return test_pixels(config, data_root(options.data))


def _write_half(bundle: Path, out: Path, test: "Iterator[NDArray[np.float32]]") -> None:
    import numpy as np
    import onnx

    from export.contract.atomic_file import write_atomically
    from export.contract.manifest import read_manifest
    from export.optimize.half_gate import check_half
    from export.optimize.half_precision import half_precision

    manifest = read_manifest(bundle)
    model = onnx.load(bundle / manifest.graphs["encoder"].file)
    half = half_precision(model)
    found = check_half(model, half, np.concatenate(list(test)), manifest.objects_per_image)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "half.onnx"
    write_atomically(file, half.SerializeToString())
    print(
        f"wrote {file}: of {found.images} test images {found.other_decisions} get another class; "
        f"lengths differ by at most {found.length_error:.1e}"
    )


def _triton(options: argparse.Namespace) -> None:
    from export.triton import write_repository

    bundle = newest_version(options.bundle)
    written = write_repository(bundle, options.out, options.device, options.max_batch)
    print(f"{options.out}: wrote version {written.version} of {', '.join(written.models)}")
    if written.ensemble_version is None:
        print(f"{bundle} has no decoder: no ensemble")
    elif written.ensemble_version != written.version:
        print(f"{written.models[-1]} stays at version {written.ensemble_version}, the newest")


if __name__ == "__main__":
    main()
