"""Where capsules look is where they look."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from export.contract.receptive_fields import Grid, capsule_grids
from export.explain.graph import explain_graph
from tests.support.explained import TINY_MATRIX, capsnet_manifest, manifest_of, run_named
from tests.support.random_encoders import pictures, random_encoder
from training.config import MatrixCapsNetConfig
from training.models.build import build


def test_the_papers_primary_capsules_see_17_pixels_two_apart():
    assert capsule_grids(capsnet_manifest("the paper's")) == {"primary_caps": Grid(6, 2, 17)}
    assert Grid(6, 2, 17).centers == [8.5, 10.5, 12.5, 14.5, 16.5, 18.5]


@pytest.mark.parametrize("name", ["the paper's", "many priors", "1 iteration"])
def test_a_pixel_changes_the_capsules_whose_field_it_is_in_and_no_others(name):
    encoder, manifest = random_encoder(name), capsnet_manifest(name)
    explain, [grid] = explain_graph(encoder, manifest), capsule_grids(manifest).values()
    pixels = pictures(encoder, 1)
    before = run_named(explain, pixels=pixels)["activities"]
    for row, column in ((0, 0), (9, 13), (pixels.shape[1] - 4, 7)):
        changed = pixels.copy()
        changed[0, row, column] = 5 - changed[0, row, column]
        moved = (run_named(explain, pixels=changed)["activities"] != before).any(axis=(0, 1))
        along = [np.abs(np.array(grid.centers) - (place + 0.5)) < grid.field / 2 for place in (row, column)]
        np.testing.assert_array_equal(moved, np.outer(*along))


@pytest.mark.parametrize("size", [24, 32, 33])
def test_matrix_capsules_are_where_their_coordinates_say(size):
    config = MatrixCapsNetConfig(**(TINY_MATRIX | {"image_size": size}))
    grid = capsule_grids(manifest_of(config, (4, 4)))["conv_caps.1"]
    offsets = build(config).class_caps.offsets.unflatten(0, (grid.size, grid.size, -1))[:, :, 0]
    centers = torch.tensor(grid.centers) / size
    torch.testing.assert_close(offsets[:, 0, 3], centers)
    torch.testing.assert_close(offsets[0, :, 7], centers)


def test_grids_of_all_layers_are_those_of_the_network():
    config = MatrixCapsNetConfig(**TINY_MATRIX)
    grids = capsule_grids(manifest_of(config, (4, 4)))
    layers = build(replace(config)).conv_caps
    assert [grid.size**2 for grid in grids.values()] == [len(layer.fields.inside) for layer in layers]
