"""Figure 3 of Sabour et al. 2017: reconstructions of right answers, and two of each wrong one."""

# N images, J classes, C channels, H and W height and width

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.config import RunConfig
from training.data.batches import Batches
from training.evaluate.evaluation import BATCH
from training.experiments import figure, markdown
from training.experiments.runner import Row, Runner, networks_of
from training.experiments.sabour2017 import perturb
from training.loss.objective import reconstruct
from training.models.capsnet import CapsNet, lengths

RIGHT_LABELS = (2, 5, 8, 9)  # the paper's columns with right answers
PAPERS_FAILURE = (5, 3)  # label and prediction
_LABELS = ", ".join(map(str, RIGHT_LABELS))


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        network: which answers and draws.
        failures: how many wrong answers are shown at most, each of another label; the paper shows one.
    """

    network: RunConfig
    failures: int


FULL = Plan(perturb.FULL.network, 4)
QUICK = Plan(perturb.QUICK.network, 4)


@dataclass(frozen=True)
class Answers:
    """What a network makes of each test image.

    Attributes:
        label: true class, int64 [N].
        prediction: class with the longest capsule, int64 [N].
        lengths: of all capsules, [N, J].
        pixels: the images, [N, C, H, W], 0 to 1.
        drawn: each twice, from the capsule of its label and from that of the prediction, [N, 2, C, H, W].
    """

    label: Tensor
    prediction: Tensor
    lengths: Tensor
    pixels: Tensor
    drawn: Tensor

    @property
    def squared_error(self) -> Tensor:
        """Of both reconstructions, summed over pixels, [N, 2]."""
        return (self.drawn - self.pixels.unsqueeze(1)).square().sum(dim=(2, 3, 4))


def run(runner: Runner, plan: Plan) -> None:
    """Reconstruct every test image from its label's capsule and from the longest one."""
    settings = networks_of(plan.network) | {"failures": plan.failures}
    runner.measure({"data": plan.network.data.name}, settings, partial(_measure, runner, plan))


def _measure(runner: Runner, plan: Plan) -> Row:
    trained = runner.trained(plan.network)
    assert isinstance(trained.model, CapsNet)
    answers = look(trained.model, runner.evaluation_batches(plan.network))
    right = answers.label == answers.prediction
    error = answers.squared_error
    columns = _right_columns(answers) + _wrong_columns(answers, plan.failures)
    return {
        "images": len(right),
        "right": int(right.sum()),
        "right_squared_error": _mean(error[right, 0]),
        "wrong_squared_error_of_label": _mean(error[~right, 0]),
        "wrong_squared_error_of_prediction": _mean(error[~right, 1]),
        "wrong_nearer_to_prediction": int((error[~right, 1] < error[~right, 0]).sum()),
        "columns": [_describe(answers, image, which) for image, which in columns],
        "pictures": runner.keep("columns", _pictures(answers, columns)),
        **trained.origin,
    }


@torch.no_grad()
def look(model: CapsNet, batches: Batches) -> Answers:
    """Answer every image, and draw it from the capsules of its label and of the answer, on their device."""
    assert model.decoder is not None
    parts = []
    for batch in batches.fixed(BATCH):
        v = model(batch.pixels)
        found = lengths(v)
        label, prediction = batch.targets.argmax(dim=1), found.argmax(dim=1)
        classes = torch.stack([label, prediction], dim=1)
        masks = torch.eye(found.shape[1], device=found.device)[classes]  # [B, 2, J]
        parts.append((label, prediction, found, batch.pixels, reconstruct(model.decoder, v, masks)))
    return Answers(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _right_columns(answers: Answers) -> list[tuple[int, int]]:
    """The first right answer of each of the paper's labels; image, and 0: drawn from the label's capsule."""
    right = answers.label == answers.prediction
    found = (torch.nonzero(right & (answers.label == label)).flatten().tolist() for label in RIGHT_LABELS)
    return [(images[0], 0) for images in found if images]


def _wrong_columns(answers: Answers, count: int) -> list[tuple[int, int]]:
    """The first wrong answer of each label, drawn twice; the paper's confusion leads, if there is one."""
    wrong = torch.nonzero(answers.label != answers.prediction).flatten().tolist()
    pairs = {i: (int(answers.label[i]), int(answers.prediction[i])) for i in wrong}
    wrong.sort(key=lambda i: (pairs[i] != PAPERS_FAILURE, i))
    first_of_label: dict[int, int] = {}
    for i in wrong:
        first_of_label.setdefault(pairs[i][0], i)
    return [(i, which) for i in list(first_of_label.values())[:count] for which in (0, 1)]


def _describe(answers: Answers, image: int, which: int) -> Row:
    """A column: label, prediction and reconstruction target (l, p, r), and how well it fits."""
    label, prediction = int(answers.label[image]), int(answers.prediction[image])
    target = prediction if which else label
    return {
        "image": image,
        "label": label,
        "prediction": prediction,
        "target": target,
        "length": float(answers.lengths[image, target]),
        "squared_error": float(answers.squared_error[image, which]),
    }


def _pictures(answers: Answers, columns: list[tuple[int, int]]) -> np.ndarray:
    """Input and output of each column, uint8 [columns, 2, H, W]."""
    shown = [torch.stack([answers.pixels[i], answers.drawn[i, which]]).mean(dim=1) for i, which in columns]
    return (255 * torch.stack(shown)).round().byte().cpu().numpy()


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def report(rows: list[Row]) -> str:
    """How well reconstructions fit, over the test set and in the columns of the figure."""
    return "\n".join(_report(row) for row in rows)


def _report(row: Row) -> str:
    wrong, nearer = row["images"] - row["right"], row["wrong_nearer_to_prediction"]
    errors = (
        ("right answers, r = l = p", row["right"], row["right_squared_error"]),
        ("wrong answers, r = l", wrong, row["wrong_squared_error_of_label"]),
        ("wrong answers, r = p", wrong, row["wrong_squared_error_of_prediction"]),
    )
    means = [(name, str(images), markdown.number(error, 1)) for name, images, error in errors]
    columns = [
        (
            f"({column['label']}, {column['prediction']}, {column['target']})",
            str(column["image"]),
            markdown.number(column["length"]),
            markdown.number(column["squared_error"], 1),
        )
        for column in row["columns"]
    ]
    return f"""{markdown.table(("", "test images", "squared error, sum over pixels, mean"), means)}
Label l, prediction p and reconstruction target r: what is drawn is class r's capsule alone. Of {wrong} wrong
answers {nearer} are drawn better from the capsule of the prediction than from that of the label.

The columns of the figure are the first right answers of the labels {_LABELS}, as in the paper, and
the first wrong answers of different labels, each drawn as its label and as the prediction:

{markdown.table(("(l, p, r)", "number in the test set", "length of r's capsule", "squared error"), columns)}
The paper shows four right answers and one wrong one, (5, 3, 5) and (5, 3, 3), and has no numbers. By eye,
its reconstructions keep "many of the details while smoothing the noise", and those of the wrong answer
explain how a 5 was taken for a 3.
{perturb.said_of_loss([row])}"""


def plot(rows: list[Row], file: Path) -> None:
    """Input above output, a column for each reconstruction."""
    [row] = rows
    pictures = np.load(file.parent / row["pictures"])  # [columns, 2, H, W]
    titles = [f"({column['label']}, {column['prediction']}, {column['target']})" for column in row["columns"]]
    figure.save_grid(file, [list(line) for line in pictures.swapaxes(0, 1)], ["input", "output"], titles)
