"""What benchmarks post: a bundle's samples as PNG files, or as a request with binary tensors.

Each also as wrk has them after `--`, for post.lua: the content type, headers, then files.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"FP32": "<f4", "UINT8": "u1"}

# N images, H rows, W columns, C channels

Floats = NDArray[np.float32]


def wrk(url: str, clients: int, seconds: int, arguments: Sequence[str]) -> list[str]:
    """The command that posts for so long, with the arguments of post.lua."""
    script = str(Path(__file__).with_name("post.lua"))
    options = ["-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "60s", "-s", script]
    return ["wrk", *options, url, "--", *arguments]


def samples(bundle: Path) -> Floats:
    """The pixels of a bundle's samples, [N, H, W, C], 0-1."""
    with np.load(bundle / "samples.npz", allow_pickle=False) as found:
        pixels: Floats = found["pixels"]
    return pixels


def write_pictures(pixels: Floats, folder: Path) -> list[Path]:
    """Each image, or the first view of each pair, as a PNG file."""
    pictures = []
    for number, values in enumerate(np.rint(pixels[..., 0] * 255).astype(np.uint8)):
        pictures.append(folder / f"{number}.png")
        Image.fromarray(values).save(pictures[-1])
    return pictures


def write_tensors(pixels: Floats, images: int, datatype: str, folder: Path) -> Path:
    """So many images in one binary request, whose suffix is its JSON's length."""
    batch = np.resize(pixels, (images, *pixels.shape[1:]))
    levels = np.rint(batch * 255) if datatype == "UINT8" else batch
    content = levels.astype(DATATYPES[datatype]).tobytes()
    tensor = {
        "name": "pixels",
        "datatype": datatype,
        "shape": batch.shape,
        "parameters": {"binary_data_size": len(content)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    tensors = folder / f"tensors.{len(head)}"
    tensors.write_bytes(head + content)
    return tensors


def posting_pictures(pictures: Sequence[Path]) -> tuple[str, ...]:
    """PNG files, one in a request."""
    return ("image/png", *map(str, pictures))


def posting_tensors(tensors: Path) -> tuple[str, ...]:
    """What `write_tensors` has written."""
    return ("application/octet-stream", f"HEADER_{LENGTH}={tensors.suffix[1:]}", str(tensors))
