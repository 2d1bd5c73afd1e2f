"""The renderer of the toys: what it says against geometry done by hand."""

import math

import numpy as np
import pytest

from training.data.synthetic.toys.parts import ball, block, mirrored, oval, rod
from training.data.synthetic.toys.rays import look
from training.data.synthetic.toys.renderer import (
    AMBIENT,
    RAYS_PER_SIDE,
    TABLE_REFLECTANCE,
    hang_lamp,
    nearest,
    rectangle,
    shade,
    surface,
)
from training.data.synthetic.toys.solids import Motion

ABOVE = np.array([0.0, 0.0, 0.5])
EYE = np.array([6.0, 1.0, 4.0])
SIZE = 150  # rays, both ways; a multiple of RAYS_PER_SIDE
SOLIDS = {
    "ellipsoid": ball((0.1, 0, 0.5), (0.6, 0.3, 0.4), rise=25),
    "cylinder": rod((-0.4, 0.1, 0.5), (0.4, -0.2, 0.7), 0.3, 0.3),
    "frustum": oval((0, 0, 0.1), (0.2, 0.1, 0.9), (0.5, 0.3), 0.4),
    "widening frustum": oval((0, 0, 0.1), (0, 0, 0.9), (0.2, 0.3), 2.0),
    "block": block((0, 0, 0.1), (0, 0, 0.8), (0.5, 0.3)),
    "wedge": block((0, 0, 0.1), (0.3, 0, 0.8), (0.5, 0.3), (0.1, 0.2)),
    "wing": block((0, 0, 0.5), (-0.4, 0.8, 0.6), (0.3, 0.05), (0.1, 0.02), plane="xz"),
}


def camera(eye=EYE, half_field=1.0, size=SIZE):
    return look(np.array(eye, float), ABOVE, half_field, size)


def points(depths, rays):
    """Where rays meet at these depths, [H, W, 3], from the definition of a ray."""
    steps = rays.forward + rays.y[:, None, None] * rays.down + rays.x[None, :, None] * rays.right
    return rays.eye + (depths.astype(float) + rays.reach)[..., None] * steps


@pytest.mark.parametrize("radius", [0.1, 0.4, 0.9])
def test_a_balls_outline_has_the_area_that_perspective_gives_it(radius):
    rays = camera(size=400)
    on_ball = nearest([ball(tuple(ABOVE), (radius,) * 3)], rays)[1] == 0
    outline = radius * rays.reach / math.sqrt(rays.reach**2 - radius**2)
    assert on_ball.mean() * 4 == pytest.approx(math.pi * outline**2, rel=0.01)


def test_a_ball_is_met_at_its_surface_however_far_the_eye():
    for distance in (2.0, 7.0, 50.0):
        rays = camera(EYE / np.linalg.norm(EYE) * distance)
        depths, which = nearest([ball(tuple(ABOVE), (0.05,) * 3)], rays)
        distances = np.linalg.norm(points(depths, rays)[which == 0] - ABOVE, axis=1)
        np.testing.assert_allclose(distances, 0.05, rtol=1e-3)


@pytest.mark.parametrize(
    ("solid", "top"), [("block", 0.8), ("cylinder", None), ("widening frustum", 0.9), ("frustum", 0.9)]
)
def test_ends_are_closed(solid, top):
    end = {"cylinder": (0.4, -0.2, 0.7), "frustum": (0.2, 0.1, 0.9)}.get(solid, (0, 0, top))
    outward = np.array([0.8, -0.3, 0.2]) if solid == "cylinder" else np.array([0.01, 0.0, 1.0])
    rays = look(np.array(end) + 5 * outward, np.array(end), 0.05, 9)
    depths, which = nearest([SOLIDS[solid]], rays)
    assert (which == 0).all()
    np.testing.assert_allclose(points(depths, rays)[4, 4], end, atol=1e-4)


@pytest.mark.parametrize("name", SOLIDS)
def test_normals_stand_upright_on_the_surface_and_point_outwards(name):
    rays = camera(size=360)
    met = surface([SOLIDS[name]], rays)
    place, normal = np.stack(met.points, -1).astype(float), np.moveaxis(met.normals, 0, -1).astype(float)
    np.testing.assert_allclose(np.linalg.norm(normal, axis=-1), 1, atol=1e-5)
    assert ((normal * (rays.eye - place)).sum(-1)[met.on_toy] > -1e-3).all()
    inner = met.on_toy[1:-1, 1:-1] & met.on_toy[1:-1, 2:] & met.on_toy[2:, 1:-1]
    right, down = place[1:-1, 2:] - place[1:-1, 1:-1], place[2:, 1:-1] - place[1:-1, 1:-1]
    across = np.cross(down, right)
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    agreement = (across * normal[1:-1, 1:-1]).sum(-1)[inner]
    assert inner.sum() > 500
    assert np.mean(agreement > 0.99) > 0.95  # all but where a neighbor is on another face or at the rim


@pytest.mark.parametrize("name", SOLIDS)
def test_no_ray_outside_its_rectangle_meets_a_solid(name):
    rays = camera()
    rows, columns = rectangle(SOLIDS[name], rays)
    with np.errstate(invalid="ignore", divide="ignore"):
        depths = SOLIDS[name].met(rays)
    met = np.isfinite(depths)
    assert met.sum() > 100
    met[rows, columns] = False
    assert not met.any()


def test_what_is_nearer_hides_what_is_farther_whatever_their_order():
    toward = (EYE - ABOVE) / np.linalg.norm(EYE - ABOVE)
    near, far = ball(tuple(ABOVE + toward), (0.2,) * 3), ball(tuple(ABOVE - toward), (0.5,) * 3)
    first, second = (nearest(pair, camera())[1] for pair in ([near, far], [far, near]))
    assert first[SIZE // 2, SIZE // 2] == 0
    assert second[SIZE // 2, SIZE // 2] == 1
    np.testing.assert_array_equal(first == 0, second == 1)
    assert (first == 1).any(), "the farther one is seen around the nearer one"


def test_a_lamp_lights_the_table_by_lamberts_cosine_and_the_inverse_square():
    place, rays = np.array([1.0, 2.0, 3.0]), camera()
    met = surface([], rays)
    light = shade(met, [hang_lamp([], place, ABOVE, 1.0, power=5.0)])[1]
    table = np.stack([grid[1::RAYS_PER_SIDE, 1::RAYS_PER_SIDE] for grid in met.points], -1)
    toward = place - table
    distance = np.linalg.norm(toward, axis=-1)
    expected = TABLE_REFLECTANCE * 5.0 * (toward[..., 2] / distance) / distance**2
    np.testing.assert_allclose(light, expected, rtol=2e-3)


def test_light_from_everywhere_is_stronger_on_what_faces_up():
    met = surface([block((0, 0, 0), (0, 0, 1), (0.4, 0.4))], camera())
    light = shade(met, [])[0]
    toy = met.on_toy[1::RAYS_PER_SIDE, 1::RAYS_PER_SIDE]
    up = met.normals[2, 1::RAYS_PER_SIDE, 1::RAYS_PER_SIDE]
    assert light[toy & (up > 0.9)].mean() > 1.2 * light[toy & (up < 0.1)].mean()
    assert light[~toy].max() == pytest.approx(TABLE_REFLECTANCE * sum(AMBIENT), rel=1e-5)


def test_a_shadow_lies_where_the_lamps_rays_through_the_toy_end():
    middle, place = np.array([0.0, 0.0, 0.6]), np.array([-2.0, 0.0, 4.0])
    lamp = hang_lamp([ball(tuple(middle), (0.2,) * 3)], place, middle, 0.3, power=10.0)
    shadow = middle + (middle - place) * (middle[2] / (place[2] - middle[2]))
    met = surface([ball(tuple(middle), (0.2,) * 3)], look(np.array([3.0, 5.0, 6.0]), shadow, 0.6, SIZE))
    light = shade(met, [lamp])[1]
    x, y = (grid[1::RAYS_PER_SIDE, 1::RAYS_PER_SIDE] for grid in met.points[:2])
    distance = np.hypot(x - shadow[0], y - shadow[1])
    table = ~met.on_toy[1::RAYS_PER_SIDE, 1::RAYS_PER_SIDE]
    assert (light[table & (distance < 0.15)] == 0).all()
    assert (light[table & (distance > 0.4)] > 0).all()


def test_a_toy_in_full_light_does_not_shade_itself():
    egg = ball((0, 0, 0.5), (0.5, 0.4, 0.5))
    met = surface([egg], camera())
    light = shade(met, [hang_lamp([egg], EYE, ABOVE, 0.8, power=10.0)])[1]
    facing = np.stack([eye - grid for eye, grid in zip(EYE, met.points, strict=True)])
    cosine = (facing * met.normals).sum(0) / np.linalg.norm(facing, axis=0)
    front = (met.on_toy & (cosine > 0.3))[1::RAYS_PER_SIDE, 1::RAYS_PER_SIDE]
    assert (light[front] > 0).all()


@pytest.mark.parametrize("name", SOLIDS)
def test_a_moved_solid_is_what_it_was_elsewhere(name):
    motion = Motion(math.cos(0.7), math.sin(0.7), 1.3, np.array([0.2, -0.1, 0.3]))
    rays = camera()
    there = look(motion.of_point(rays.eye), motion.of_point(ABOVE), 1.3, SIZE)
    before, after = nearest([SOLIDS[name]], rays)[0], nearest([SOLIDS[name].moved(motion)], there)[0]
    both = np.isfinite(before) & np.isfinite(after)
    assert np.isfinite(before).sum() == pytest.approx(both.sum(), abs=5)
    np.testing.assert_allclose(after[both], 1.3 * before[both], atol=2e-3)


@pytest.mark.parametrize("name", SOLIDS)
def test_a_mirrored_solid_looks_mirrored(name):
    eye = np.array([6.0, 0.0, 4.0])
    seen = nearest([SOLIDS[name]], camera(eye))[1]
    np.testing.assert_array_equal(nearest([mirrored(SOLIDS[name])], camera(eye))[1], seen[:, ::-1])
