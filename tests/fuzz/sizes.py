"""One code, two sizes: a share that is the same every time, in every test run, and `make fuzz`."""

from hypothesis import HealthCheck, settings

# What is slow or large here is so on purpose.
WANTED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

SHARE = settings(deadline=None, derandomize=True, database=None, suppress_health_check=WANTED)
FUZZ = settings(deadline=None, derandomize=False, print_blob=True, suppress_health_check=WANTED)


def is_fuzz() -> bool:
    """Whether this is `make fuzz`, which is pytest with --hypothesis-profile=fuzz."""
    return settings.get_current_profile_name() == "fuzz"


def examples(share: int, fuzz: int) -> settings:
    """Settings for so many examples of a test, in a share and in `make fuzz`."""
    return settings(FUZZ, max_examples=fuzz) if is_fuzz() else settings(SHARE, max_examples=share)
