import importlib.util
import sys
import textwrap

import numba
import numpy as np
import pytest

from training.models.cpu import lanes
from training.models.cpu.lanes import LANES, compiled, kernel, load, store


@compiled
def identity(x):
    return x


def of_lanes(function):
    """A compiled function of Lanes as one of a float32 array."""

    @numba.njit
    def of_groups(x, y):
        for group in range(len(x)):
            store(y[group], function(load(x[group])))

    def of_array(x):
        x = np.asarray(x, np.float32)
        y = np.empty((-(-len(x) // LANES), LANES), np.float32)
        of_groups(np.resize(x, y.shape), y)
        return y.flatten()[: len(x)]

    return of_array


def errors_in_ulp(found, expected):
    return np.abs(found - expected) / np.spacing(np.abs(expected).astype(np.float32))


@pytest.mark.parametrize(
    ("function", "expected", "x"),
    [
        (lanes.exp, np.exp, np.linspace(-87.3, 88, 50_000)),
        (lanes.log, np.log, np.exp(np.linspace(-87, 87, 50_001))),
        (lanes.log, np.log, np.linspace(0.5, 2, 50_000)),
        (lanes.log_of_one_plus, np.log1p, np.exp(np.linspace(-80, 0, 50_000))),
    ],
    ids=["exp", "log", "log near 1", "log1p"],
)
def test_functions_are_right_to_two_units_in_the_last_place(function, expected, x):
    x = x.astype(np.float32)
    exact = expected(x.astype(np.float64))
    assert errors_in_ulp(of_lanes(function)(x), exact).max() < 2


def test_the_exponential_of_little_is_0():
    assert of_lanes(lanes.exp)([-88.1, -1e30, -np.inf]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("function", [lanes.exp, lanes.log, lanes.log_of_one_plus, identity])
def test_what_is_not_a_number_stays_so(function):
    assert np.isnan(of_lanes(function)([np.nan])).all()


@numba.njit
def products(pose, other, matrix, found):
    left, right = load(pose), load(other)
    store(found[0], lanes.plus_product(right, left, matrix))
    store(found[1], lanes.plus_product_with_transposed(right, left, matrix))
    store(found[2], lanes.product_of_transposed(left, right))
    store(found[3, 0], lanes.dot(left, right))
    store(found[3, 1], lanes.sums_over_lanes(left))


@numba.njit
def arithmetic(pose, other, found):
    left, right, number = load(pose), load(other), load(pose[0])
    total = left + right
    total -= number * right
    store(found, total / lanes.every(2) / right)


def matrices(pose):
    """[16, LANES] to [LANES, 4, 4]."""
    return pose.T.reshape(LANES, 4, 4)


def test_products_are_those_of_4x4_matrices_in_each_lane():
    random = np.random.default_rng(0)
    pose, other, matrix = (
        random.standard_normal(shape, np.float32) for shape in ((16, LANES), (16, LANES), 16)
    )
    found = np.empty((4, 16, LANES), np.float32)
    products(pose, other, matrix, found)
    fixed = matrix.reshape(4, 4)
    np.testing.assert_allclose(matrices(found[0]), matrices(other) + matrices(pose) @ fixed, atol=1e-5)
    np.testing.assert_allclose(matrices(found[1]), matrices(other) + matrices(pose) @ fixed.T, atol=1e-5)
    transposed = matrices(pose).transpose(0, 2, 1)
    np.testing.assert_allclose(matrices(found[2]), transposed @ matrices(other), atol=1e-5)
    np.testing.assert_allclose(found[3, 0], (pose * other).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(found[3, 1], pose.sum(axis=1), atol=1e-5)


def test_the_example_of_the_documentation_does_what_it_says():
    example = lanes.__doc__.split(":\n\n", 1)[1].split("\n\nIt has", 1)[0]
    names = dict(vars(lanes))
    exec(textwrap.dedent(example), names)
    poses = np.random.default_rng(0).normal(size=(3, 16, LANES)).astype(np.float32)
    expected = poses - poses.mean(axis=0)
    names["center"](poses)
    np.testing.assert_allclose(poses, expected, atol=1e-6)


def test_operators_compute_element_by_element():
    random = np.random.default_rng(1)
    pose, other = random.random((2, 16, LANES), np.float32) + 1
    found = np.empty_like(pose)
    arithmetic(pose, other, found)
    np.testing.assert_allclose(found, (pose + other - pose[0] * other) / 2 / other, atol=1e-6)


@pytest.mark.parametrize("change", [np.asfortranarray, lambda x: x[:, ::2], np.float64])
def test_only_contiguous_float32_is_loaded(change):
    """Whatever else there is would be read as if it were."""
    pose, found = np.ones((16, 2 * LANES), np.float32), np.empty((16, LANES), np.float32)

    @numba.njit
    def copy(x, y):
        store(y, load(x))

    with pytest.raises(AssertionError, match="array"):
        copy(change(pose), found)


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """The compiled function of a module that is imported anew, as in another process."""
    (tmp_path / "answering.py").write_text("def answer():\n    return 42\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported():
        specification = importlib.util.spec_from_file_location("answering", tmp_path / "answering.py")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        answer = kernel(module.answer)
        assert answer() == 42
        return answer

    return imported


def hits(function):
    return sum(function.stats.cache_hits.values())


def test_code_that_was_compiled_of_other_sources_is_compiled_again(answering, monkeypatch):
    """Numba would look at the kernel's own file alone."""
    assert [hits(answering()), hits(answering())] == [0, 1]
    monkeypatch.setattr(lanes, "SOURCES", "changed")
    assert [hits(answering()), hits(answering())] == [0, 1]


def test_code_of_other_sources_lies_in_other_files(answering, tmp_path, monkeypatch):
    """Else a process could find the old code under the new index, which is written first."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    answering()
    [first] = tmp_path.rglob("*.nbc")
    code = first.read_bytes()
    monkeypatch.setattr(lanes, "SOURCES", "changed")
    answering()
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
    assert first.read_bytes() == code


def test_without_a_folder_for_compiled_code_each_process_compiles(answering, tmp_path, monkeypatch):
    (tmp_path / "__pycache__").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "__pycache__" / "below a file"))
    assert [hits(answering()), hits(answering())] == [0, 0]
