"""The CPUs that a process may use."""

import os

import pytest

from export.contract.processors import usable_cpus


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max 100000", None),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("nonsense", None),
        ("1600000 100000", None),
    ],
)
def test_threads_follow_the_quota_of_the_control_group(tmp_path, content, expected):
    (tmp_path / "cpu.max").write_text(content)
    allowed = len(os.sched_getaffinity(0))
    expected = min(allowed, 16) if content.startswith("16") else expected
    assert usable_cpus(tmp_path / "cpu.max") == (expected or allowed)


def test_without_control_groups_every_allowed_cpu_is_used(tmp_path):
    assert usable_cpus(tmp_path / "missing") == len(os.sched_getaffinity(0))
