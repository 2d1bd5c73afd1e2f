"""axe-core, which finds what a screen reader, a keyboard or weak eyes cannot use; axe/ has its license."""

import gzip
from pathlib import Path

from playwright.sync_api import Page

AXE = Path(__file__).with_name("axe") / "axe.min.js.gz"
SERIOUS = {"serious", "critical"}


def serious_findings(page: Page) -> list[str]:
    """What axe finds serious on the page as it is now: the rule and the elements."""
    page.evaluate(gzip.decompress(AXE.read_bytes()).decode())
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in SERIOUS
    ]
