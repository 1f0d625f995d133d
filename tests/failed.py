"""Print the tests that failed in a run of pytest, one a line, as it takes them: ``python -m tests.failed LASTFAILED``.

pytest's own ``--last-failed`` knows none that xdist ran in a group: their group's name was kept with theirs, and where
none has such a name all tests are run.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

MOST = 20
"""With more of them it was no busy machine."""


def failed(kept: Path) -> list[str]:
    """Return the identifiers of what failed, from pytest's cache (``v/cache/lastfailed``)."""
    return sorted(re.sub(r"@[^@\]]*$", "", test) for test in json.loads(kept.read_text()))


if __name__ == "__main__":
    found = failed(Path(sys.argv[1]))
    if len(found) > MOST:
        sys.exit(f"{len(found)} failed: too many for a busy machine")
    print("\n".join(found))
