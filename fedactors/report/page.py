"""One self-contained HTML page about runs: no network, readable on a phone and in dark mode."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedactors.auditing.audit import check_run
from fedactors.config import as_dict
from fedactors.errors import BadInput, FedactorsError
from fedactors.messages.codec import HEADER_BYTES
from fedactors.plugins import find_protocol
from fedactors.report.charts import (
    MAX_LANES,
    MEANINGS,
    NUM_COLOURS,
    PHASE,
    Timeline,
    colour,
    draw_communication,
    escape,
    kind_index,
    line_chart,
)
from fedactors.runs import schemas
from fedactors.runs.compare import (
    AXES,
    Curve,
    Group,
    LoadedRun,
    compare,
    group_runs,
    make_curve,
    shared_metrics,
    table_rows,
)
from fedactors.runs.folder import AUDIT, PREDICTIONS, PRIVACY, RunFolder
from fedactors.runs.metrics import read_events, read_lines
from fedactors.runs.progress import format_bytes
from fedactors.runs.recorder import read_ledger

_MOST_COLUMNS = 4
_SHORT = 12
"""Rows of a table that stays open."""
_FEW_CHARTS = 6
_LONG = 40
"""Letters of a cell from which on it is a text that may break, not a figure."""
_DRIVER = "driver"
_LIGHT = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#db2777")
_DARK = ("#60a5fa", "#fbbf24", "#34d399", "#c084fc", "#f87171", "#22d3ee", "#a3e635", "#f472b6")
_ABOUT_THE_LEDGER = (
    f"Bytes are those of arrays, texts and numbers; each message has {HEADER_BYTES} bytes of header besides, in which "
    "its first eight numbers ride. The ledger states what the code sent through the framework. It proves nothing about "
    "a malicious party, about what the driver reads, or about what can be inferred from what was sent."
)
_ABOUT_USAGE = {
    "seconds": "of the run's clock, from when its actors are ready; in simulation a virtual one, which counts what the "
    "links and machines of the settings would take",
    "wall_seconds": "what the run took here, by a clock on the wall",
    "cpu_utilisation": "share of the cores' time that was computed in",
    "idle_seconds": "what all actors together waited for messages",
}
_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1f2937;--soft:#6b7280;--grid:#e5e7eb;--card:#f9fafb;%s}
@media (prefers-color-scheme:dark){:root{--page:#111827;--ink:#e5e7eb;--soft:#9ca3af;--grid:#374151;--card:#1f2937;%s}}
body{margin:0 auto;max-width:1040px;padding:1rem;font:16px/1.5 system-ui,sans-serif}
body{background:var(--page);color:var(--ink)}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%%,300px),1fr));gap:1rem}
.charts figure{max-width:520px}
figure{margin:0;padding:.5rem;background:var(--card);border-radius:.5rem;overflow-x:auto}
svg{width:100%%;height:auto;display:block;font-size:11px}.wide svg{min-width:840px}
svg text{fill:var(--soft);paint-order:stroke;stroke:var(--card);stroke-width:3px}
.charts svg{font-size:13px}.grid{stroke:var(--grid)}.curve{fill:none;stroke-width:2}
.lane{fill:var(--grid);opacity:.35}.zoom:has([value="4"]:checked) svg{width:400%%}
.zoom:has([value="16"]:checked) svg{width:1600%%}.zoom label{margin-right:.5rem;white-space:nowrap}
.edge{fill:none;stroke:var(--ink);opacity:.55}
.talk{max-width:680px}.talk svg{min-width:520px;font-size:13px}details{margin:.6rem 0}
@media(max-width:600px){.talk svg{min-width:0;font-size:16px}}.facts h2{display:inline-block;margin:.5rem 0}
.table{overflow-x:auto}.table+.table{margin-top:1.2rem}table{border-collapse:collapse;font-size:.875rem;min-width:50%%}
td:first-child{white-space:normal;min-width:9rem;max-width:22rem;overflow-wrap:break-word}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--grid);white-space:nowrap}
td{vertical-align:top}td.long{white-space:normal;min-width:10rem;overflow-wrap:anywhere}
th{vertical-align:bottom;white-space:normal;max-width:15rem}.named{display:inline-block}
th button{text-align:left;font:inherit;font-weight:600;background:none;border:0;padding:0;color:inherit;cursor:pointer}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .3em 0 .8em}
code{font-size:.85rem;overflow-wrap:anywhere}
@media(max-width:600px){td:first-child{min-width:5rem}}
.save{font:inherit;font-size:.75rem;color:var(--soft);background:none;border:0;padding:0;cursor:pointer}
.note{color:var(--soft);font-size:.875rem}summary{cursor:pointer}
"""
_SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const cell = button.parentElement, column = cell.cellIndex, body = cell.closest("table").tBodies[0];
  const down = cell.getAttribute("aria-sort") === "ascending";
  for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)], [p, q] = [x, y].map(text => parseFloat(text.replaceAll(",", "")));
    return Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
  };
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
});
const drawn = ["fill", "stroke", "stroke-width", "opacity", "paint-order", "font-size", "font-family"];
const standalone = svg => {  // what the page's style says, as attributes
  const copy = svg.cloneNode(true), all = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(all[index]);
    for (const name of drawn) element.setAttribute(name, style.getPropertyValue(name));
    element.removeAttribute("class");
  });
  copy.style.background = getComputedStyle(svg.closest("figure")).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
};
for (const svg of document.querySelectorAll("figure svg")) {
  const link = document.createElement("button");
  link.textContent = "Save as SVG";
  link.className = "save";
  link.addEventListener("click", () => {
    const file = document.createElement("a");
    file.href = URL.createObjectURL(new Blob([standalone(svg)], {type: "image/svg+xml"}));
    file.download = (svg.getAttribute("aria-label") || "figure").replace(/[^A-Za-z0-9_.]+/g, "-") + ".svg";
    file.click();
    setTimeout(() => URL.revokeObjectURL(file.href), 10000);
  });
  svg.closest("figure").append(link);
}
"""


def render_report(runs: Sequence[LoadedRun]) -> str:
    """Return the page; everything that comes from files is escaped."""
    groups = group_runs(runs)
    title = "fedactors: " + ", ".join(dict.fromkeys(run.summary.protocol for run in runs))
    body = [f"<h1>{escape(title)}</h1>", _head(runs), _overview(runs), _notes(groups), _curves(groups)]
    if len(runs) == 1:
        body.append(_details(runs[0]))
    else:
        body.append("<h2>Each run</h2>")
        body += [_closed(group, run) for group in groups for run in group.runs]
    style = _STYLE % (_palette(_LIGHT), _palette(_DARK))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>{_SCRIPT}</script>\n</body></html>\n"
    )


def _head(runs: Sequence[LoadedRun]) -> str:
    """Return what was run, on what, when and by which version, in one line for each thing that all runs share."""
    facts: dict[str, dict[str, None]] = {}
    for run in runs:
        config = run.config
        environment = run.folder.environment if run.folder is not None else {}
        packages = environment.get("packages", {}) if run.row is None else run.row.versions
        for name, value in (
            ("data", config.get("data")),
            ("runtime", config.get("runtime")),
            ("seeds", run.summary.seed),
            ("fedactors", packages.get("fedactors")),
            ("started", _started(run)),
        ):
            if value is not None:
                facts.setdefault(name, {})[str(value)] = None
    if len(started := sorted(facts.get("started", ()))) > 1:
        facts["started"] = {f"{started[0].removesuffix(' UTC')} to {started[-1]}": None}
    told = [f"<strong>{name}</strong> {escape(_some(list(values)))}" for name, values in facts.items()]
    commands = dict.fromkeys(command for run in runs if (command := _command(run)) is not None)
    shown = "".join(f"<div><code>{escape(command)}</code></div>" for command in [*commands][:_MOST_COLUMNS])
    return f'<p class="note">{" · ".join(told)}</p>{shown}'


def _command(run: LoadedRun) -> str | None:
    """Return the command that makes a run like this one: the settings that are not the defaults, without the seed.

    None for a scenario's run, for one of a protocol that is not installed here, and for a row of a table.
    """
    config = run.config
    if run.folder is None or config.get("scenario") != run.summary.protocol:
        return None
    try:
        protocol = find_protocol(run.summary.protocol)
        defaults = as_dict(protocol.Config())
    except (FedactorsError, TypeError):
        return None
    words = ["fedactors", "run", protocol.name]
    if config.get("data") != protocol.default_data:
        words += ["--data", str(config.get("data"))]
    words += ["--runtime", "simulated"] if config.get("runtime") == "simulated" else []
    given = config.get("config", {})
    words += [
        f"{key}={value}" for key, value in given.items() if key not in defaults or str(value) != str(defaults[key])
    ]
    return shlex.join(words)


def _started(run: LoadedRun) -> str | None:
    """Return when a run began, which stands in its folder's name."""
    found = re.match(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)", run.name)
    return None if found is None else "{}-{}-{} {}:{} UTC".format(*found.groups())


def _some(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 6 else f"{', '.join(values[:5])} and {len(values) - 5} more"


def _overview(runs: Sequence[LoadedRun]) -> str:
    comparison = compare(runs)
    (header, rows), *others = table_rows(comparison)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in comparison["notes"])
    notes += _meanings({name: said for name, said in _ABOUT_USAGE.items() if name in header})
    if len(rows) > _MOST_COLUMNS:
        return "<h2>Results</h2>" + "".join(_table(*table) for table in [(header, rows), *others]) + notes
    # a line for each metric: few groups side by side fit a screen, all metrics do not
    columns = [[f"{row[0]}, {row[1]} runs" if row[1] != "1" else row[0], *row[2:]] for row in rows]
    gaps = [
        [f"{row[0]} [95 %]" if any("[" in cell for cell in row) else row[0], *row[1:]]
        for _, entries in others
        for row in entries
    ]
    parts = [[*columns, *gaps]] if len(columns) + len(gaps) < _MOST_COLUMNS else [columns, gaps]
    return "<h2>Results</h2>" + "".join(_turned(["metric", *header[2:]], part) for part in parts if part) + notes


def _turned(names: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    """Return a table of columns beside their lines' names; each column begins with its own."""
    header, *lines = zip(names, *columns, strict=True)
    return _table(header, lines)


def _meanings(said: Mapping[str, str]) -> str:
    """Return what names on the page mean, as one note."""
    listed = "; ".join(f"<strong>{escape(name)}</strong>: {escape(meaning)}" for name, meaning in said.items())
    return f'<p class="note">{listed}.</p>' if listed else ""


def _notes(groups: Sequence[Group]) -> str:
    """Return what runs had to say at their end, such as which rows were left out; and which run, if not all said so."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            notes = run.summary.extra.get("notes", ())
            for note in dict.fromkeys(map(str, notes if isinstance(notes, (list, tuple)) else ())):
                found.setdefault(note, []).append(_name(group, run))
    count = sum(len(group.runs) for group in groups)
    lines = [note if len(names) == count else f"{'; '.join(names)}: {note}" for note, names in found.items()]
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _name(group: Group, run: LoadedRun) -> str:
    return f"{group.label}, seed {run.summary.seed}"


def _curves(groups: Sequence[Group]) -> str:
    parts = ["<h2>Curves</h2>"]
    if len(groups) > 1:
        keys = [_key(index, group.label) for index, group in enumerate(groups)]
        parts.append(f"<p>{''.join(keys)}</p>")
    if any(len(group.runs) > 1 for group in groups):
        parts.append('<p class="note">Lines are means over seeds, bands one standard deviation.</p>')
    measured = shared_metrics(groups)
    once = [metric for metric in measured if all(len(curve.x) == 1 for curve in _made(groups, metric))]
    constant = {
        metric: value for metric in measured if metric not in once and (value := _constant(groups, metric)) is not None
    }
    main, *others = [metric for metric in measured if metric not in once] or [""]
    parts.append(_charts(groups, [(main, axis) for axis in AXES]))
    if changing := [metric for metric in others if metric not in constant]:
        charts = _charts(groups, [(metric, "round") for metric in changing])
        parts += ["<h2>Other metrics</h2>", _folded(f"{len(changing)} charts", charts, len(changing), _FEW_CHARTS)]
    if listed := ", ".join(f"{metric} {value:g}" for metric, value in constant.items() if metric != main):
        parts.append(f'<p class="note">The same in every round: {escape(listed)}.</p>')
    if once:
        parts.append(f'<p class="note">Measured in one round only: {escape(", ".join(once))}.</p>')
    return "\n".join(parts)


def _made(groups: Sequence[Group], metric: str, axis: str = "round") -> list[Curve]:
    return [curve for group in groups if (curve := make_curve(group, metric, axis)) is not None]


def _constant(groups: Sequence[Group], metric: str) -> float | None:
    curves = _made(groups, metric)
    values = {value for curve in curves for value in curve.mean} | {s for curve in curves for s in curve.std if s}
    return values.pop() if len(values) == 1 else None


def _charts(groups: Sequence[Group], wanted: Sequence[tuple[str, str]]) -> str:
    charts = []
    for metric, axis in wanted:
        curves = _made(groups, metric, axis)
        if curves and (axis == "round" or any(x > 0 for curve in curves for x in curve.x)):
            charts.append(f"<figure>{line_chart(curves, axis, metric)}</figure>")
    return f'<div class="charts">{"".join(charts)}</div>'


def _closed(group: Group, run: LoadedRun) -> str:
    """Return one run of several, to be opened: what it was, and the name that its folder or table has."""
    title = f"<strong>{escape(_name(group, run))}</strong>"
    return f'<details><summary>{title} <span class="note">{escape(run.name)}</span></summary>{_details(run)}</details>'


def _details(run: LoadedRun) -> str:
    if run.folder is not None:
        parts = [_timeline(run, run.folder), _traffic(run.folder), _privacy(run.folder)]
        environment: Mapping[str, Any] = run.folder.environment
    else:
        parts = [] if run.row is None else [f"<p><code>{escape(run.row.command)}</code></p>"]
        environment = {} if run.row is None else run.row.versions
    parts.append(_facts("Configuration", _flatten(run.config)))
    parts.append(_facts("Environment", _flatten(environment)))
    return "\n".join(part for part in parts if part)


class _Spans:
    """The spans of a run's events, read anew each time: a run may have more of them than fit into memory."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.last: Mapping[str, Any] = {}
        """The last line: sums per actor and kind, and how many spans were left out."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for line in read_events(self._folder):
            if line["type"] == "totals":
                self.last = line
            elif line["type"] == "span":
                yield line


def _timeline(run: LoadedRun, folder: RunFolder) -> str:
    spans = _Spans(folder)
    drawn = Timeline.of(spans, run.summary.seconds if run.config.get("runtime") == "simulated" else math.inf)
    if drawn is None:
        return ""
    totals: Mapping[str, Mapping[str, float]] = spans.last.get("actors", {})
    notes = ["Heights are shares of a moment. Point at a lane for its sums."]
    if left_out := spans.last.get("dropped", 0):
        notes.append(f"The last {left_out} of {spans.last['spans']} spans were summed up, not recorded one by one.")
    if len(drawn.actors) > MAX_LANES:
        notes.append(f"The {MAX_LANES} busiest of {len(drawn.actors)} actors are drawn.")
    meanings = _meanings({kind: MEANINGS[kind] for kind in drawn.kinds if kind in MEANINGS})
    legend = "".join(_key(kind_index(kind), kind) for kind in drawn.kinds)
    zooms = "".join(
        f'<label><input type="radio" name="zoom-{escape(run.name)}" value="{times}"'
        f"{' checked' if times == 1 else ''}>{times}x</label> "
        for times in (1, 4, 16)
    )
    columns = sorted({kind for actor in totals.values() for kind in actor} - {PHASE})
    whole = run.summary.seconds
    rows = []
    for actor, seconds in totals.items():
        if seconds.keys() <= {PHASE}:
            continue  # the driver computes nothing
        share = f"{100 * seconds.get('compute', 0.0) / whole:.1f}" if whole > 0 else "-"
        rows.append([actor, *(_in_full(seconds.get(kind, 0.0)) for kind in columns), share])
    table = _table(["actor", *(f"{kind}, s" for kind in columns), "computing, % of the run"], rows)
    several = any(seconds.get("compute", 0.0) > whole > 0 for seconds in totals.values())
    meaning = '<p class="note">Above 100: several computations of an actor at a time.</p>' if several else ""
    return (
        f'<h2>Timeline</h2><div class="zoom"><p>{legend} <span class="note">zoom</span> {zooms}</p>'
        f'<p class="note">{" ".join(notes)}</p>{meanings}<figure class="wide">{drawn.draw()}</figure></div>'
        f"<h2>Utilisation</h2>{meaning}{_folded(f'{len(rows)} actors', table, len(rows))}"
    )


def _traffic(folder: RunFolder) -> str:
    columns = ["sender", "receiver", "kind", "type"]
    totals = read_ledger(folder).group_by(columns).aggregate([("bytes", "sum"), ("bytes", "count")]).to_pylist()
    totals = sorted((row for row in totals if row["kind"] != _DRIVER), key=lambda row: -row["bytes_sum"])
    edges: dict[tuple[str, str], int] = {}
    for row in totals:
        edge = (row["sender"], row["receiver"])
        edges[edge] = edges.get(edge, 0) + row["bytes_sum"]
    if not edges:
        return ""
    pairs = [
        [*(row[name] for name in columns), str(row["bytes_count"]), (format_bytes(row["bytes_sum"]), row["bytes_sum"])]
        for row in totals
    ]
    return (
        f'<h2>Who talks to whom</h2><p class="note">Point at an arrow or a cell for its bytes.</p>'
        f"<figure class=talk>{draw_communication(edges)}</figure>"
        f'<h2>What left which party</h2><p class="note">{_ABOUT_THE_LEDGER}</p>{_by_type(totals)}'
        + _folded("by sender and receiver", _table([*columns, "messages", "bytes"], pairs), len(pairs))
    )


def _by_type(totals: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of message types; `totals` are by sender and receiver as well."""
    types: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in totals:
        types.setdefault((row["type"], row["kind"]), []).append(row)
    rows: list[list[str | tuple[str, float]]] = []
    for (name, kind), members in types.items():
        size = sum(row["bytes_sum"] for row in members)
        ends = [_actors({row[end] for row in members}) for end in ("sender", "receiver")]
        rows.append([name, *ends, kind, str(sum(row["bytes_count"] for row in members)), (format_bytes(size), size)])
    return _table(["message", "from", "to", "link", "messages", "bytes"], rows)


def _actors(names: set[str]) -> str:
    return ", ".join(sorted(names)) if len(names) <= 3 else f"{len(names)} actors"


def _folded(title: str, inner: str, length: int, short: int = _SHORT) -> str:
    """Return `inner` under a title to click at, open if it is short."""
    return f"<details{' open' if length <= short else ''}><summary>{escape(title)}</summary>{inner}</details>"


def _privacy(folder: RunFolder) -> str:
    records = list(read_lines(folder, PRIVACY, schemas.PrivacyLine))
    if folder.listed(PREDICTIONS) is not None:
        records += list(read_lines(folder, PREDICTIONS, schemas.PrivacyLine))
    if not records:
        return '<h2>Privacy ledger</h2><p class="note">No clipping or noise was recorded: no differential privacy.</p>'
    shown = records[-200:]
    # what is said of no release is no column
    header = list(dict.fromkeys(key for record in shown for key, value in record.items() if value is not None))
    rows = [[_plain(record.get(key)) for key in header] for record in shown]
    note = f'<p class="note">The last {len(shown)} of {len(records)} records.</p>' if len(shown) < len(records) else ""
    return f"<h2>Privacy ledger</h2>{_claims(folder)}{note}{_table(header, rows)}"


def _claims(folder: RunFolder) -> str:
    """Return each party's claim beside what audits found of it."""
    try:
        ledger = check_run(folder)
    except BadInput as error:
        return f'<p class="note">Nothing could be recomputed: {escape(str(error))}</p>'
    wrong = {line.record.party for line in (*ledger.lines, *ledger.predictions) if not line.agrees}
    replayed: dict[tuple[str, str], float] = {}
    audits = folder.read_json(AUDIT, schemas.AuditFile)["replays"] if folder.listed(AUDIT) else ()
    for audit in audits:
        for one in audit["replays"]:
            key = (audit["party"], one["kind"])
            mu = math.inf if one["mu"] is None else float(one["mu"])
            replayed[key] = max(replayed.get(key, 0.0), mu)
    rows = [
        [
            claim.party,
            claim.neighbour,
            _plain(claim.mu) if claim.covered else "no guarantee",
            _plain(claim.epsilon) if claim.covered else "-",
            _plain(claim.delta) if claim.covered else "-",
            "does not follow from its ingredients" if claim.party in wrong else "recomputed: agrees",
            _plain(replayed.get((claim.party, claim.neighbour))),
            "-" if claim.covered else _plain(claim.uncovered),
        ]
        for claim in (*ledger.claims, *ledger.prediction_claims)
    ]
    told = [*ledger.not_counted, *([ledger.charged] if ledger.charged else [])]
    notes = "".join(f'<p class="note">{escape(line)}</p>' for line in told)
    header = ["party", "one", "mu claimed", "epsilon claimed", "delta", "ledger", "replay moved mu", "not covered"]
    return _table(header, rows) + notes


def _facts(title: str, facts: Iterable[tuple[str, Any]]) -> str:
    table = _table(["name", "value"], [[name, _plain(value)] for name, value in facts])
    return f"<details class=facts><summary><h2>{title}</h2></summary>{table}</details>"


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, item in value.items():
        name = f"{prefix}{key}"
        flat += _flatten(item, f"{name}.") if isinstance(item, Mapping) else [(name, item)]
    return flat


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        return "; ".join(value)
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str | tuple[str, float]]]) -> str:
    """Return a table whose columns sort at a click; a cell may be (text, value to sort by)."""
    head = "".join(f'<th scope="col"><button>{escape(name)}</button></th>' for name in header)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: str | tuple[str, float]) -> str:
    if isinstance(cell, tuple):
        return f'<td data-value="{cell[1]}">{escape(cell[0])}</td>'
    return f"<td{' class=long' if len(cell) > _LONG else ''}>{escape(cell)}</td>"


def _in_full(seconds: float) -> str:
    """Four digits, and thousands written out instead of as a power of ten."""
    return f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.4g}"


def _key(index: int, text: str) -> str:
    return f'<span class="named"><span class="key" style="background:{colour(index)}"></span>{escape(text)}</span>'


def _palette(colours: Sequence[str]) -> str:
    return ";".join(f"--c{index}:{colours[index]}" for index in range(NUM_COLOURS))
