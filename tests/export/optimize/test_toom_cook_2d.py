"""The encoder with both axes transformed gives what the plain graph gives, whatever the options are."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from export.optimize.choice import MAX_ERROR
from export.optimize.toom_cook_2d import toom_cook_2d
from tests.support.random_encoders import (
    CONFIGURATIONS,
    encoder_parts,
    oblong_parts,
    pictures,
    session,
)

TOLERANCE = 1e-5  # of outputs up to 1, as between PyTorch and the plain graph
BATCHES = (1, 2, 5)
TILE = (2, 3)


def outputs(model, batch):
    return session(model).run(None, {"pixels": pictures(model, batch, seed=batch)})


def largest_difference(encoder, tile):
    """Of both outputs, at all batch sizes; NaN if there is one."""
    plain, rewritten, largest = encoder.model, toom_cook_2d(encoder, tile), []
    for batch in BATCHES:
        for found, expected in zip(outputs(rewritten, batch), outputs(plain, batch), strict=True):
            assert found.shape == expected.shape
            largest.append(np.abs(found - expected).max())
    return np.max(largest)


@pytest.mark.parametrize("tile", [(6, 6), (3, 3), (2, 5), (4, 1)])
def test_tiles_that_fit_and_tiles_that_overhang_give_the_plain_graphs_outputs(tile):
    assert largest_difference(encoder_parts("the paper's"), tile) < TOLERANCE


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_option_gives_the_plain_graphs_outputs(name):
    """With 4 x 4 to 8 x 8 capsules of each type, of which tiles of 3 x 2 and 3 x 5 have too many."""
    assert largest_difference(encoder_parts(name), (3, 2)) < TOLERANCE
    assert largest_difference(encoder_parts(name), (3, 5)) < TOLERANCE


@pytest.mark.parametrize("tile", [(3, 2), (5, 5), (4, 3)])
def test_other_kernels_and_strides_give_the_plain_graphs_outputs(tile):
    assert largest_difference(oblong_parts(), tile) < TOLERANCE


def test_another_number_of_iterations_than_the_graphs_shows_in_the_outputs():
    """So a manifest that states it wrongly gets no faster graph."""
    encoder = replace(encoder_parts("the paper's"), iterations=2)
    assert largest_difference(encoder, TILE) > MAX_ERROR["capsnet"]


# exp overflows in float32 beyond 88, and is 0 below -103.
@pytest.mark.parametrize(
    "change",
    [lambda b: 100 * b, lambda b: b + 100, lambda b: b - 150],
    ids=["far apart", "all large", "all small"],
)
def test_priors_beyond_what_exp_can_do_give_the_plain_graphs_outputs(change):
    encoder = encoder_parts("many priors", {"class_caps.routing.priors": change})
    assert largest_difference(encoder, TILE) < TOLERANCE


@pytest.mark.parametrize("name", ["the paper's", "none of the above, 5 iterations"])
def test_agreements_beyond_what_exp_can_do_give_the_plain_graphs_outputs(name):
    """Votes 300 times as long. Couplings are known as well as their logits, to a few roundings of these."""
    encoder = encoder_parts(name, {"class_caps.weight": lambda w: 300 * w})
    assert largest_logit(encoder.model) > 100
    assert largest_difference(encoder, TILE) < 8 * 2**-24 * largest_logit(encoder.model)


def largest_logit(plain):
    """Of the second iteration."""
    with_logits = onnx.ModelProto()
    with_logits.CopyFrom(plain)
    logits = onnx.helper.make_empty_tensor_value_info("class_caps/routing/b_2")
    with_logits.graph.output.append(logits)
    return outputs(with_logits, 5)[-1].max()


@pytest.fixture(scope="module", params=["the paper's", "everything", "oblong"])
def encoder(request):
    return oblong_parts() if request.param == "oblong" else encoder_parts(request.param)


@pytest.fixture(scope="module")
def plain(encoder):
    return encoder.model


@pytest.fixture(scope="module")
def rewritten(encoder):
    return toom_cook_2d(encoder, TILE)


def test_inputs_and_outputs_are_those_of_the_plain_graph(plain, rewritten):
    assert list(rewritten.graph.input) == list(plain.graph.input)
    assert list(rewritten.graph.output) == list(plain.graph.output)
    assert list(rewritten.opset_import) == list(plain.opset_import)


def test_it_passes_the_checker_with_every_shape_inferred(rewritten):
    onnx.checker.check_model(rewritten, full_check=True)


def test_it_is_static(rewritten):
    """No control flow, and nothing asks for a shape."""
    operators = {node.op_type for node in rewritten.graph.node}
    assert not operators & {"Loop", "If", "Scan", "Shape", "Size", "NonZero", "Range", "Expand"}


def test_nothing_in_it_is_unused(rewritten):
    graph = rewritten.graph
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    made = [name for node in graph.node for name in node.output] + [t.name for t in graph.initializer]
    assert [name for name in made if name not in used] == []


def test_names_are_unique_and_in_the_papers_terms(rewritten):
    graph = rewritten.graph
    made = [name for node in graph.node for name in node.output]
    names = made + [value.name for value in (*graph.input, *graph.initializer)]
    assert len(names) == len(set(names))
    assert [node.name for node in graph.node] == made
    known = {"channels_first", "x", "conv1", "features", "primary_caps", "class_caps", "poses"}
    assert {name.split("/")[0] for name in made} <= known | {"probabilities"}
    letters = {name for name in made if name.count("/") == 2 and name.startswith("class_caps/routing/")}
    expected = {f"class_caps/routing/{letter}" for letter in ("s_1", "v_1", "b_2", "c_2", "s_2", "v_2")}
    assert expected <= letters
    assert {"features", "primary_caps/s", "primary_caps/u"} <= set(made)


def test_the_plain_graph_is_not_changed(encoder, plain):
    before = plain.SerializeToString(deterministic=True)
    toom_cook_2d(encoder, TILE)
    assert plain.SerializeToString(deterministic=True) == before


def test_images_do_not_know_of_each_other(plain, rewritten):
    """An image's answer is the same alone and among others, but for rounding."""
    pixels = pictures(plain, 5)
    ours = session(rewritten)
    together = ours.run(None, {"pixels": pixels})
    for i in range(5):
        alone = ours.run(None, {"pixels": pixels[i : i + 1]})
        for found, expected in zip(alone, together, strict=True):
            np.testing.assert_allclose(found[0], expected[i], rtol=0, atol=TOLERANCE)


def test_a_tile_for_which_there_is_no_algorithm_is_refused(encoder):
    with pytest.raises(ValueError, match="are possible"):
        toom_cook_2d(encoder, (2, 20))
