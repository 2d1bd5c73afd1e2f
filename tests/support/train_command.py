"""capsnet-train in this process."""

import pytest

from training.cli import main


def status(*arguments: object) -> object:
    """How the command ends with these arguments: its exit status."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code
