"""The images of a bundle's samples, on which its graphs can be tried."""

from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import BundleError, File, read_checked
from export.contract.one_line import first_line


def read_sample_pixels(bundle: Path, samples: File) -> NDArray[np.float32]:
    """The images, [N, H, W, C] in 0-1.

    Args:
        bundle: the version's folder.
        samples: the file, as the manifest lists it.

    Raises:
        BundleError: the file is not what the manifest says, or holds no images.
    """
    content = read_checked(bundle, samples)
    try:
        with np.load(BytesIO(content), allow_pickle=False) as arrays:
            pixels: NDArray[np.float32] = arrays["pixels"]
    except Exception as fault:  # whatever is wrong with the file, of whoever made it
        raise BundleError(f"{samples.file} holds no images: {first_line(fault)}") from fault
    return pixels
