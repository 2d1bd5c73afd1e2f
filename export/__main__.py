"""The command capsnet-export, which names the extra to install where a package is missing."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from export.cli import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(f"capsnet-export needs {error.name}: pip install -e '.[train,cpu]'\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
