import pytest

from benchmarks.resilience.soak import main


@pytest.mark.parametrize("minutes", ["1.005", "nan", "-1"])
def test_a_soak_that_would_end_with_its_first_minute_is_refused(minutes, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--minutes", minutes])
    assert ended.value.code == 2
    assert "--minutes must be at least 1.5" in capsys.readouterr().err
