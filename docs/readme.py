"""Renew what README shows: ``python -m docs.readme``.

Runs README's Python block and writes what it printed below, and takes the picture of a run's report with Chromium.
`python scenarios/demo.py --readme` renews what the demo printed.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs/figures/report.png"
WIDTH, HEIGHT = 1280, 1250
"""Of the picture, in pixels."""
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n\nprints\n\n```\n(?P<printed>.*?)```\n\n", re.S)


def printed(code: str) -> str:
    """Run Python code as a script and return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def block(text: str) -> re.Match[str]:
    """Return README's Python block with what it is said to print."""
    found = _BLOCK.search(text)
    assert found is not None, "README has no Python block with what it prints"
    return found


def take_picture(to: Path) -> None:
    """Train a short run and save its report page as a PNG.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("no Chromium is here (apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        fedactors = (sys.executable, "-m", "fedactors")
        words = ("run", "pubsub-vfl", "--runtime", "simulated", "--out", f"{folder}/runs")
        subprocess.run([*fedactors, *words], check=True, capture_output=True)
        (run,) = Path(folder, "runs").iterdir()
        page = Path(folder, "report.html")
        subprocess.run([*fedactors, "report", str(run), "--output", str(page)], check=True, capture_output=True)
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        shot = (f"--user-data-dir={folder}/profile", f"--screenshot={to}", f"--window-size={WIDTH},{HEIGHT}")
        subprocess.run([browser, *flags, *shot, page.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    text = README.read_text()
    found = block(text)
    start, end = found.span("printed")
    README.write_text(text[:start] + printed(found["code"]) + text[end:])
    take_picture(PICTURE)
