"""The command capsnet-train, which names the extra to install where a package is missing."""

from export.contract.ctrl_c import leave_quietly_in_imports
from export.contract.extras import TRAINING, naming_the_extra


def main() -> None:
    """Run the command line."""
    leave_quietly_in_imports()
    with naming_the_extra("capsnet-train", TRAINING):
        from training.cli import main as run
    run()


if __name__ == "__main__":
    main()
