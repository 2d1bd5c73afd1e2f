"""The command capsnet-train, which names the extra to install where a package is missing."""

import sys

from export.contract.ctrl_c import leave_quietly_in_imports


def main() -> None:
    """Run the command line."""
    leave_quietly_in_imports()
    try:
        from training.cli import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(f"capsnet-train needs {error.name}: pip install -e '.[train,cpu]'\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
