"""What each process of a run on many machines does: load the model once, and score shards as --local does.

Ray starts these processes and hands out the shards. What a process or a node that dies was doing, it gives to
another. Errors are handed back as text, for the command to print.
"""

import asyncio
import functools
import json
import pickle
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from capsnet.in_order import in_order
from export.contract.one_line import one_line
from service.score.local_scorer import LocalScorer, load_local
from service.score.part_folder import PartFacts, PartFolder
from service.score.picture_stream import PictureStream, in_batches
from service.score.query import ChosenModel, Query, ScoreError
from service.score.shards import Shard
from service.score.table import Columns
from service.settings import SettingsError, read_settings


@dataclass(frozen=True)
class Job:
    """How every shard is scored.

    Attributes:
        models: folders of bundles, absolute, separated as in PATH.
        query: the model, and how to score.
        batch: maximum pictures per run of the model.
        concurrency: batches in flight at once.
        threads: that compute in each process, on a CPU.
        image_column: of Parquet files.
        id_column: of Parquet files.
    """

    models: str
    query: Query
    batch: int
    concurrency: int
    threads: int
    image_column: str | None
    id_column: str | None


def choose_model(job: Job) -> ChosenModel | str:
    """The version that scores all pictures, or why there is none."""
    try:
        return _scorer(job.models, job.query, job.batch, job.threads).model
    except ScoreError as error:
        return str(error)


def score_shard(row: Mapping[str, Any], job: Job, model: ChosenModel, folder: PartFolder) -> dict[str, Any]:
    """Score a shard and write its part.

    Args:
        row: `part`, the number, and `shard`, pickled.
        job: how.
        model: that scores all pictures; another bundle in its place is a fault.
        folder: where the part goes.

    Returns:
        `part`, `labels`, a JSON object of the number of rows of each label, `skipped`, and `fault`, the text
        of an error that ends the run, or "".
    """
    facts, fault = PartFacts({}, 0), ""
    try:
        scorer = _same_scorer(job, model)
        facts = asyncio.run(_write_part(row["part"], pickle.loads(row["shard"]), job, scorer, folder))
    except (ScoreError, SettingsError, OSError) as error:
        fault = one_line(error)
    return {
        "part": row["part"],
        "labels": json.dumps(facts.labels),
        "skipped": facts.skipped,
        "fault": fault,
    }


def _same_scorer(job: Job, model: ChosenModel) -> LocalScorer:
    scorer = _scorer(job.models, job.query, job.batch, job.threads)
    if scorer.model.digest != model.digest:
        raise ScoreError(
            f"{model.name}/{model.version} is another bundle on a node: digest {scorer.model.digest} instead "
            f"of {model.digest}"
        )
    return replace(scorer, turn=asyncio.Lock())  # a lock belongs to the event loop that waits for it


async def _write_part(
    number: int, shard: Shard, job: Job, scorer: LocalScorer, folder: PartFolder
) -> PartFacts:
    pictures = PictureStream(shard.pictures(job.image_column, job.id_column))
    batches = in_batches(pictures, job.batch, read_settings().max_body_bytes, scorer.model.views)
    columns = Columns(scorer.model.class_names, job.query.poses)
    async with aclosing(in_order(scorer.score, batches, job.concurrency)) as outcomes:
        return await folder.write(number, columns, outcomes)


@functools.lru_cache(maxsize=1)
def _scorer(models: str, query: Query, batch: int, threads: int) -> LocalScorer:
    """The model, which a process loads once."""
    return load_local(models, query, batch, threads)
