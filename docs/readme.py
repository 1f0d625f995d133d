"""Renew what README shows: ``python -m docs.readme``.

Runs README's Python block and writes what it printed below it, takes the picture of a run's report with Chromium, and
records the demo: its lines, with the time of each, as an animated SVG. The same run of the demo renews its table.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs/figures/report.png"
RECORDING = ROOT / "docs/figures/demo.svg"
WIDTH, HEIGHT = 1280, 1250
"""Of the picture, in pixels."""
COLUMNS, ROWS = 80, 26
"""Of the recorded terminal."""
SHOWN_SECONDS = 20.0
"""How long a recording plays."""
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


Line = tuple[float, str]
"""A printed line, and the seconds after which it was printed."""


def record(command: Sequence[str], folder: Path) -> list[Line]:
    """Run a command in a folder and return the lines of its standard output and standard error, with their times.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "COLUMNS": str(COLUMNS)}
    begin = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        lines = [(time.monotonic() - begin, line.rstrip()) for line in process.stdout]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "\n".join(text for _, text in lines))
    return lines


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 @width@ @height@" role="img">
<title>@title@</title>
<style>
.demo-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; }}
.title {{ font: 17px system-ui, sans-serif; fill: #a3acb9; }}
{styles}
@motion@
</style>
<rect width="100%" height="100%" rx="8" fill="#1d2430"/>
<text x="50%" y="28" text-anchor="middle" class="title">@title@</text>
<svg x="12" y="44" width="@inner_width@" height="@inner_height@">
<g class="demo-matrix">
{matrix}
</g>
</svg>
</svg>
"""
"""The format of rich's SVG; what stands between @ is filled in afterwards."""


def recording(lines: Sequence[Line], command: str) -> str:
    """Return an SVG that plays printed lines in a terminal; it stays on the last rows, and shows these without motion.

    Args:
        lines: as `record` returns them.
        command: the command that printed them.
    """
    rows = [(0.0, f"$ {command}")]
    for when, text in lines:
        rows += [(when, text[start : start + COLUMNS]) for start in range(0, max(len(text), 1), COLUMNS)]
    length = max(rows[-1][0], 1e-3)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False, markup=False, emoji=False)
    for _, text in rows:
        console.print(text, soft_wrap=True)
    svg = console.export_svg(title="", unique_id="demo", code_format=_SVG)
    svg = re.sub(r' clip-path="url\(#demo-line-(\d+)\)"', r' data-row="\1"', svg)
    high = 24.4  # rich: 1.22 times the 20 pixels of a character
    motion = ["[data-row] { animation: appear 1ms both; }", "@keyframes appear { from { opacity: 0; } }"]
    steps = []
    for row, (when, _) in enumerate(rows):
        motion.append(f'[data-row="{row}"] {{ animation-delay: {when / length * SHOWN_SECONDS:.2f}s; }}')
        moved = max(0, row + 1 - ROWS) * high
        steps.append(f"{when / length:.3%} {{ transform: translateY(-{moved:.1f}px); }}")
    last = max(0, len(rows) - ROWS) * high
    motion += [
        f"@keyframes scroll {{ {' '.join(steps)} }}",
        f".demo-matrix {{ transform: translateY(-{last:.1f}px); animation: scroll {SHOWN_SECONDS:g}s step-end both; }}",
        "@media (prefers-reduced-motion: reduce) { .demo-matrix, [data-row] { animation: none; } }",
    ]
    width, height = COLUMNS * 12.2, ROWS * high + 8
    filled = {
        "title": f"{command}: {length:.0f} s, played {length / SHOWN_SECONDS:.1f} times as fast",
        "motion": "\n".join(motion),
        "inner_width": f"{width:g}",
        "inner_height": f"{height:g}",
        "width": f"{width + 24:g}",
        "height": f"{height + 56:g}",
    }
    for name, value in filled.items():
        svg = svg.replace(f"@{name}@", value)
    return svg


def record_demo(to: Path) -> None:
    """Run the demo, which writes what it printed into README, and save its recording."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(ROOT / "scenarios/demo.py")
        to.write_text(recording(record([sys.executable, script, "--readme"], Path(folder)), "python scenarios/demo.py"))


if __name__ == "__main__":
    text = README.read_text()
    found = block(text)
    start, end = found.span("printed")
    README.write_text(text[:start] + printed(found["code"]) + text[end:])
    take_picture(PICTURE)
    record_demo(RECORDING)
