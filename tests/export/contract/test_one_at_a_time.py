from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest

from export.contract.one_at_a_time import one_at_a_time


def test_only_one_has_the_lock(tmp_path):
    """Each removes the file that others wait for."""
    has_it = Lock()

    def take(_) -> None:
        with one_at_a_time(tmp_path / ".lock"):
            assert has_it.acquire(blocking=False)
            has_it.release()

    with ThreadPoolExecutor(max_workers=8) as threads:
        list(threads.map(take, range(400)))
    assert not list(tmp_path.iterdir())


def fail_with(lock):
    with one_at_a_time(lock):
        raise InterruptedError


def test_after_an_error_the_lock_is_free_again(tmp_path):
    for _ in range(2):
        with pytest.raises(InterruptedError):
            fail_with(tmp_path / ".lock")
    assert not list(tmp_path.iterdir())
