"""Schemas of Triton's statistics and model configuration extensions, for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel, Field


class Counted(BaseModel):
    """How often something happened, and how long it took in sum."""

    count: int
    ns: int = Field(description="nanoseconds")


class InferStatistics(BaseModel):
    """Sums over requests; each request counts the whole time of the batches that it was in."""

    success: Counted = Field(description="requests with a result, from the queue to the result")
    fail: Counted = Field(description="requests that ended with an error behind the checks of their input")
    queue: Counted = Field(description="waiting for the first batch")
    compute_input: Counted = Field(description="joining requests into a batch")
    compute_infer: Counted = Field(description="running the graph")
    compute_output: Counted = Field(description="handing out the outputs")
    cache_hit: Counted = Field(description="none: no answer is cached")
    cache_miss: Counted


class BatchStatistics(BaseModel):
    """Sums over the batches of one size."""

    batch_size: int = Field(description="images")
    compute_input: Counted
    compute_infer: Counted
    compute_output: Counted


class ModelStatistics(BaseModel):
    """What a graph has done since its version was loaded, for requests of every route."""

    name: str
    version: str
    last_inference: int = Field(description="milliseconds since 1970; 0 before the first")
    inference_count: int = Field(description="images")
    execution_count: int = Field(description="batches")
    inference_stats: InferStatistics
    batch_stats: list[BatchStatistics]


class ModelsStatistics(BaseModel):
    """Answer of /v2/models/{name}/stats."""

    model_stats: list[ModelStatistics] = Field(description="of what is loaded")


class ConfiguredTensor(BaseModel):
    """An input or output of a graph."""

    name: str
    data_type: Literal["TYPE_FP32"]
    dims: list[int] = Field(description="without the batch axis")


class LatestVersions(BaseModel):
    """The newest versions are served."""

    num_versions: int


class VersionPolicy(BaseModel):
    """Which versions are served."""

    latest: LatestVersions


class InstanceGroup(BaseModel):
    """What runs batches."""

    kind: Literal["KIND_CPU", "KIND_GPU"]
    count: int = Field(description="inference threads")


class DynamicBatching(BaseModel):
    """How batches form."""

    preferred_batch_size: list[int] = Field(description="images of the largest batch")


class ModelConfig(BaseModel):
    """Answer of /v2/models/{name}/config: fields of Triton's ModelConfig."""

    name: str
    platform: str
    backend: str
    version_policy: VersionPolicy
    max_batch_size: int = Field(description="maximum images in one request")
    input: list[ConfiguredTensor]
    output: list[ConfiguredTensor]
    instance_group: list[InstanceGroup]
    default_model_filename: str
    dynamic_batching: DynamicBatching
