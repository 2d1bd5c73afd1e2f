"""Fail where pytest has skipped tests for a reason that allowed-skips, beside this file, does not list.

python3 .ci/skips.py OUTPUT        a file of what pytest has printed, with -rs
"""

import re
import sys
from pathlib import Path

SHOWN = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$", re.MULTILINE)
COUNTED = re.compile(r"^=+ .*\b(\d+) skipped\b.* =+$", re.MULTILINE)
LISTED = Path(__file__).with_name("allowed-skips")


def reasons(listed: str) -> list[str]:
    """The regular expressions of such a list."""
    lines = [line for line in listed.splitlines() if line and not line.startswith("#")]
    return [line.rsplit("  # ", 1)[0] for line in lines]


def complaint(output: str, allowed: list[str]) -> str:
    """What is wrong with the skips in an output of pytest; empty if nothing is."""
    shown, counted = SHOWN.findall(output), COUNTED.findall(output)
    count = sum(int(number) for number, _ in shown)
    if [str(count)] != (counted or ["0"]):
        return f"pytest has skipped {', '.join(counted) or 'no'} tests and shows {count}: it needs -rs"
    unlisted = [why for _, why in shown if not any(re.fullmatch(reason, why) for reason in allowed)]
    said = "skipped for a reason that .ci/allowed-skips does not list:"
    return "\n  ".join([said, *unlisted]) if unlisted else ""


if __name__ == "__main__":
    sys.exit(complaint(Path(sys.argv[1]).read_text(), reasons(LISTED.read_text())) or 0)
