"""The model card: the manifest's facts in prose, for people."""

from export.card_network import network_sentences
from export.card_training import origins, training_table
from export.contract.manifest import Manifest
from export.markdown import code, plain
from training.config import RunConfig, from_dict
from training.models.matrix_capsules import COORDINATES, OFFICIAL_COORDINATES
from training.runs.from_bundle import run_config

CARD_FILE = "MODEL_CARD.md"

PAPERS = {
    "capsnet": "A CapsNet with {:,} parameters, as in *Dynamic Routing Between Capsules*\n"
    "(Sabour, Frosst, Hinton 2017)",
    "matrix-capsnet": "Matrix capsules with {:,} parameters, as in *Matrix Capsules with EM Routing*\n"
    "(Hinton, Sabour, Frosst 2018)",
}
EACH_ALONE = "each class stands on its own, so they need not sum to 1."
PROPORTIONS = "a share of what is assigned to all classes, so they sum to 1."
OTHERS = "what is none of its classes gets low probabilities at best."
OTHERS_SHARED = "what is none of its classes gets shares of 1 as well."


def model_card(manifest: Manifest) -> str:
    """Markdown that says what the model is, how it was trained, how well it does and what it cannot do."""
    config = run_config(manifest)
    return "\n".join(
        [
            *_summary(manifest, config),
            *training_table(manifest, config),
            *_use(manifest),
            *_confidence(manifest),
            *_limits(manifest, config),
            *_remark(manifest),
        ]
    )


def _summary(manifest: Manifest, config: RunConfig) -> list[str]:
    paper = PAPERS[manifest.architecture].format(manifest.parameter_count)
    return [
        f"# {manifest.model}",
        "",
        f"{paper}. {' '.join(network_sentences(config))}",
        "",
        *[
            f"**{metric.name.replace('_', ' ').capitalize()} {metric.value:.2f} %** ({metric.data}). "
            f"To measure it again: {code(metric.command)}"
            for metric in manifest.metrics
        ],
        "",
        *(
            ["An image of two objects is right if both are named.", ""]
            if manifest.objects_per_image > 1
            else []
        ),
    ]


def _use(manifest: Manifest) -> list[str]:
    facts = manifest.preprocessing
    polarity = "of any polarity" if facts.polarity == "any" else facts.polarity.replace("-", " ")
    kind = "stereo pairs, the left view first," if manifest.views == 2 else "images"
    is_matrix = manifest.architecture == "matrix-capsnet"
    return [
        "## Use",
        "",
        f"Input: {kind} float32 [N, {facts.height}, {facts.width}, {facts.channels}], 0 to 1, {polarity}.",
        f"Classes: {', '.join(map(plain, manifest.class_names))}. A probability is the "
        f"{'activation' if is_matrix else 'length'} of a class capsule:",
        PROPORTIONS if _is_shared(manifest) else EACH_ALONE,
        *([_pose(manifest)] if is_matrix else []),
        f"PyTorch and ONNX Runtime agreed to {manifest.parity.max_abs_error:.1e} on images "
        f"({manifest.parity.images}).",
        "",
    ]


def _confidence(manifest: Manifest) -> list[str]:
    """From which probability on an answer is confident, and what that is worth."""
    found = manifest.confidence
    if found is None:
        return []
    named = "each of the classes that it names is" if manifest.objects_per_image > 1 else "its class is"
    return [
        "## Confidence",
        "",
        f"An answer is confident if {named} as probable as {found.min_probability:g}: "
        f"{found.right_confident} of {found.right} right answers reach it, and {found.wrong_confident} of "
        f"{found.wrong} wrong ones ({found.data}). "
        f"To measure it again: {code(found.command)}",
        "",
    ]


def _is_shared(manifest: Manifest) -> bool:
    """Whether probabilities are shares."""
    return bool(manifest.parameters.get("mixing_proportions"))


def _pose(manifest: Manifest) -> str:
    """What the numbers of a matrix capsule's pose are."""
    if len(manifest.pose_shape) == 1:
        return f"A pose is a vector of {manifest.pose_shape[0]} numbers, of any size."
    rows, columns = manifest.pose_shape
    matrix = f"A pose is a {rows}x{columns} matrix of numbers of any size, row by row."
    if not manifest.parameters.get("coordinate_addition"):
        return matrix
    official = manifest.parameters.get("official_routing")
    first, second = OFFICIAL_COORDINATES if official else COORDINATES
    places = "where the object's parts are: row and column, 0 to 1"
    return f"{matrix} Elements {first} and {second} have in them {places}."


def _limits(manifest: Manifest, config: RunConfig) -> list[str]:
    stages = [config, *(from_dict(origin["config"]) for origin in origins(config.started_from))]
    has_seen_blanks = any(stage.data.blank_fraction for stage in stages)
    return [
        "## Limits",
        "",
        config.data.spec.limits,
        f"It has no class for anything else: {OTHERS_SHARED if _is_shared(manifest) else OTHERS}",
        "Rotations and distortions beyond those of the training images lower the accuracy.",
        *([] if has_seen_blanks else ["It has never seen an empty image, and may be sure of one."]),
        "",
    ]


def _remark(manifest: Manifest) -> list[str]:
    """What its publisher adds, which the run cannot know."""
    remark = manifest.training.get("remark")
    return ["## Remark", "", remark, ""] if remark else []
