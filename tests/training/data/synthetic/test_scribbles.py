import numpy as np

from training.data.synthetic.drawn_digits import draw_digits
from training.data.synthetic.scribbles import draw_scribbles


def test_the_same_state_gives_the_same_scribbles_each_of_which_is_another():
    first, second = (draw_scribbles(40, np.random.default_rng(3)) for _ in range(2))
    assert first.shape == (40, 28, 28)
    assert first.dtype == np.uint8
    assert np.array_equal(first, second)
    assert len(np.unique(first.reshape(40, -1), axis=0)) == 40
    assert (first.reshape(40, -1).max(axis=1) > 60).all(), "something can be seen in each"


def test_strokes_have_the_thickness_and_place_of_digits():
    scribbles = draw_scribbles(80, np.random.default_rng(3)).reshape(10, 8, 28, 28)[:, :6].reshape(-1, 28, 28)
    digits = draw_digits(np.arange(60) % 10, np.random.default_rng(3))
    for pictures in (scribbles, digits):
        across, down = (pictures.sum(axis=axis) @ np.arange(28) for axis in (1, 2))
        middles = np.stack([across, down]) / pictures.sum(axis=(1, 2))
        assert np.abs(middles - 14).max() < 1
    light = [(pictures > 127).mean() for pictures in (scribbles, digits)]
    assert 1 < light[0] / light[1] < 2.5, "more strokes, no thicker ones"


def test_a_picture_may_have_another_size():
    assert draw_scribbles(8, np.random.default_rng(0), 40).shape == (8, 40, 40)
