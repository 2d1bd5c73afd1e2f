"""The queue of a graph: how many requests came together recently."""

from service.inference.graph_queue import RecentPeak

WINDOW_S = 0.05


def test_the_peak_is_the_largest_value_of_one_to_two_windows():
    peak = RecentPeak(WINDOW_S)
    peak.note(0, 9)
    peak.note(0.01, 2)
    assert [peak.at(time) for time in (0.02, 0.06)] == [9, 9]


def test_a_peak_is_forgotten_after_two_windows():
    peak = RecentPeak(WINDOW_S)
    peak.note(0, 9)
    assert peak.at(0.06) == 9
    peak.note(0.07, 2)
    assert [peak.at(time) for time in (0.12, 0.5)] == [2, 0]


def test_a_peak_is_forgotten_though_nobody_has_asked_meanwhile():
    peak = RecentPeak(WINDOW_S)
    peak.note(0, 9)
    assert peak.at(0.5) == 0
