"""MATLAB 5 files (.mat), as SVHN and affNIST are published; read with SciPy."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_variables(path: Path, content: bytes, *names: str) -> list[NDArray[Any]]:
    """Variables of a .mat file.

    Args:
        path: where the file came from, for errors.
        content: the file.
        names: of the variables.

    Returns:
        One array per name, as SciPy gives it: a structure is [1, 1] with named fields.

    Raises:
        ValueError: not a MATLAB 5 file, cut short, damaged, or without one of the variables.
    """
    from scipy.io import loadmat  # here, so that other data sets are read without it

    try:
        variables = loadmat(io.BytesIO(content), variable_names=names)
    except NotImplementedError:
        raise ValueError(f"{path} is a MATLAB 7.3 file (HDF5); expected MATLAB 5") from None
    except Exception as error:  # SciPy raises whatever a damaged file makes it stumble over
        raise ValueError(
            f"{path} is not a sound MATLAB 5 file of {len(content)} bytes: {error or 'it ends early'}"
        ) from None
    missing = [name for name in names if name not in variables]
    if missing:
        found = ", ".join(name for name in variables if not name.startswith("__")) or "none of them"
        raise ValueError(f"{path} lacks {', '.join(missing)}; expected {', '.join(names)}, found {found}")
    return [variables[name] for name in names]


def whole_numbers(path: Path, name: str, values: Any) -> NDArray[np.int64]:
    """A variable as integers.

    Args:
        path: where the file came from, for errors.
        name: of the variable.
        values: as SciPy gives it.

    Raises:
        ValueError: it is a cell, a structure or a sparse matrix, or a number in it is not whole.
    """
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
        found = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"{path}: {name} is {found}; expected whole numbers")
    with np.errstate(invalid="ignore"):  # a NaN is not whole, either
        numbers = values.astype(np.int64)
    if (wrong := values[numbers != values]).size:
        raise ValueError(f"{path}: {name} has {wrong[0]:g}; expected whole numbers")
    return numbers
