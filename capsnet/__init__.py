"""The Python client of the service: `Client`, and `AsyncClient` for asyncio.

>>> from capsnet import Client, Sweep
>>> with Client("http://localhost:8000") as client:
...     result = client.classify("7.png").results[0]
...     label, pose = result.label, result.classes[0].pose
...     row = client.reconstruct_grid(pose=pose, label=label, sweep=Sweep(dimensions=[3]))
...     outcomes = list(client.classify_many(["7.png", "missing.png"]))
>>> result.label == outcomes[0].classification.label
True
>>> outcomes[1].reason
'No such file or directory'

Needs neither the server's packages nor onnxruntime or torch. If the service refuses a request, the client
raises CapsnetError, which says what was expected, what came and what to do.
"""

from capsnet.answers import (
    Answer,
    Classification,
    ClassScore,
    Encoded,
    Failed,
    Model,
    ModelVersion,
    Outcome,
    Pinned,
    Reconstruction,
    Reconstructions,
    Scored,
    Segmentation,
    SegmentedObject,
)
from capsnet.async_client import AsyncClient
from capsnet.base_client import DEFAULT_URL
from capsnet.client import Client
from capsnet.errors import CapsnetError, ChangedBundleError, ConnectError, UnreachableError
from capsnet.explanations import ExplainedClass, ExplainedLayer, Explanation, Places
from capsnet.reconstruct_requests import Sweep
from capsnet.retries import Retry
from capsnet.uploads import Pair, Picture, Pictures

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "AsyncClient",
    "CapsnetError",
    "ChangedBundleError",
    "ClassScore",
    "Classification",
    "Client",
    "ConnectError",
    "Encoded",
    "ExplainedClass",
    "ExplainedLayer",
    "Explanation",
    "Failed",
    "Model",
    "ModelVersion",
    "Outcome",
    "Pair",
    "Picture",
    "Pictures",
    "Pinned",
    "Places",
    "Reconstruction",
    "Reconstructions",
    "Retry",
    "Scored",
    "Segmentation",
    "SegmentedObject",
    "Sweep",
    "UnreachableError",
]
