"""Commands that pages show in indented blocks: the protocols' pages, the README, the results.

They are run in this process, page by page and in their order, in an empty folder: `fedactors run` in its smallest form
(``--smoke``, or two rounds) and on the virtual clock unless the command says otherwise. RUN stands for a run folder of
the page that fits, runs/A and runs/B for the first two, runs/* for all. What cannot be run here is in `NOT_RUN`,
with the reason.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx
import numpy as np
import pytest

from fedactors.cli import main as cli
from fedactors.cli.parsers import parsers
from fedactors.config import build_given
from fedactors.data.datasets.catalogue import catalogue, is_present
from fedactors.plugins import find_protocol

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMANDS = ("fedactors", "python", "python3", "ray", "export", "make", "pip", "git")
NOT_RUN = {
    "python3 -m venv": "installs: tests/test_plugin_package.py and CI make fresh environments",
    ". .venv": "installs: tests/test_plugin_package.py and CI make fresh environments",
    "pip install": "installs: tests/test_plugin_package.py and CI make fresh environments",
    "python -m tests.campaign.sites": "takes an hour: 140 faults between sites; tests/campaign/test_sites.py has some",
    "python -m tests.campaign.hospitals": "takes up to half an hour: tests/federation/test_quorum.py has five sites",
    "make ": "they make an environment of their own; CI begins with them",
    "export RAY_AUTH_MODE": "starts real hosts: tests/runtime/hosts.py starts its hosts with the same words",
    "ray get-auth-token": "starts real hosts: tests/runtime/hosts.py starts its hosts with the same words",
    "chmod 600 ~/.ray/auth_token": "the token of whoever runs the tests is not to be touched",
    "ray start": "starts real hosts: tests/runtime/hosts.py starts its hosts with the same words",
    "export CARDS_SOUTH": "needs a PostgreSQL server of that name: the tests of TablePuppet start one of their own",
    "fedactors run pubsub-vfl --data parties.toml PAGE=protocols": "own files, which the tutorial has",
    "fedactors run tablepuppet --data parties.toml algorithm=rfl-admm PAGE=how-to": "needs the same server",
}
# the smoke setting of mtcd has fewer features than its page has clients
SMALLEST = {"mtcd": ["num_rounds=2"], "horizontal fashion-mnist": ["--smoke", "num_training=2000"]}
IN_OTHER_TESTS = ("results", "reference/command-line.md")


def indented(page: Path) -> Iterator[str]:
    """Yield the commands in blocks of four spaces, without comments, joined where a line goes on."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S).replace("\\\n", " ")
    for block in re.findall(r"(?:^\n|\A)((?: {4}\S.*\n)+(?:\n?(?: {4}\S.*\n)+)*)", text, re.M):
        if block.split()[0] in COMMANDS:
            for line in block.splitlines():
                parts = shlex.split(line, comments=True)
                if parts:
                    yield from (" ".join(piece) for piece in split_at(parts, (";", "&&")))


def split_at(words: list[str], marks: tuple[str, ...]) -> Iterator[list[str]]:
    piece: list[str] = []
    for word in words:
        if word in marks:
            yield piece
            piece = []
        else:
            piece.append(word)
    yield piece


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT if page.parent == ROOT else DOCS))


ALL = {name_of(page): list(indented(page)) for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
RESULTS = [name for name, commands in ALL.items() if commands and name.startswith("results")]


def why_not(page: str, command: str) -> str | None:
    """Say why a command of a page is not run here, or None."""
    for start, reason in NOT_RUN.items():
        words, _, where = start.partition(" PAGE=")
        if command.startswith(words) and page.startswith(where):
            return reason
    missing = {f"--data {dataset.name}" for dataset in catalogue() if not is_present(dataset)}
    return next((f"{data} is not here: FEDACTORS_DATA" for data in missing if f"{data} " in f"{command} "), None)


def runs_any(page: str) -> bool:
    return any(why_not(page, command) not in NOT_RUN.values() for command in ALL[page])


PAGES = [name for name in ALL if runs_any(name) and not name.startswith(IN_OTHER_TESTS)]


def user_files(page: str, folder: Path) -> None:
    """Write the files of their own that readers of a page have."""
    draw = np.random.default_rng(0)
    if page.endswith("mtcd.md"):
        networkx.write_graphml(networkx.cycle_graph(12), folder / "links.graphml")
    elif page.endswith("glasu.md"):
        labels = np.arange(60) % 3
        masks = {name: np.arange(60)[part::3] for part, name in enumerate(("train", "validation", "test"))}
        for graph, known in (("my", {"labels": labels, **masks}), ("new", {"ids": np.arange(100, 160)})):
            np.savez(folder / f"{graph}-nodes.npz", **known)
            text = f'[task]\nlayout = "graph"\nnodes = "{graph}-nodes.npz"\n'
            for party in ("bank", "shop"):
                edges, features = draw.integers(0, 60, (2, 200)), draw.normal(size=(60, 5)) + labels[:, None]
                np.savez(folder / f"{graph}-{party}.npz", edges=edges, features=features)
                text += f'[parties.{party}]\nfile = "{graph}-{party}.npz"\n'
            (folder / f"{graph}-graph.toml").write_text(text)
        (folder / "my_networks.py").write_text(
            "import torch\nfrom torch import nn\n\n\nclass Layer(nn.Module):\n"
            "    def __init__(self, width, size):\n        super().__init__()\n"
            "        self.of_both = nn.Linear(2 * width, size)\n\n"
            "    def forward(self, own, mean):\n"
            "        return torch.relu(self.of_both(torch.cat((own, mean), 1)))\n\n\n"
            "def layer(inputs, size):\n    return Layer(*inputs, size)\n"
        )
    elif page.endswith("horizontal.md"):
        for client in ("north", "south", "test"):
            (folder / f"{client}.csv").write_text("id,card,amount,returned\n" + orders(draw))
        columns = 'label = "returned"\nfeatures = ["card", "amount"]\n'
        parties = [f'[parties.{client}]\npath = "{client}.csv"\n{columns}' for client in ("north", "south")]
        task = '[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "test.csv"\n'
        (folder / "parties.toml").write_text(task + "".join(parties))
        net = "nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, outputs))"
        (folder / "my_networks.py").write_text(
            f"from torch import nn\n\n\ndef net(inputs, outputs):\n    return {net}\n"
        )
    elif page.endswith("tablepuppet.md"):
        (folder / "orders.csv").write_text("id,card,amount,returned\n" + orders(draw))
        (folder / "cards.csv").write_text("card,age\n" + "".join(f"{card},{20 + card}\n" for card in range(20)))
        (folder / "parties.toml").write_text(
            '[task]\ntype = "binary"\nlayout = "relational"\nlabel = "o.returned"\n'
            'sql = "SELECT o.amount, c.age FROM orders o JOIN cards c ON o.card = c.card"\n'
            '[parties.orders]\npath = "orders.csv"\n[parties.cards]\npath = "cards.csv"\n'
        )


def orders(draw: np.random.Generator) -> str:
    rows = [(card, amount) for card, amount in zip(draw.integers(0, 20, 300), draw.normal(5, 2, 300), strict=True)]
    return "".join(f"{i},{c},{a:.3f},{int(a > 4 + c / 10)}\n" for i, (c, a) in enumerate(rows))


@pytest.mark.drawn(2, always=["README.md"])
@pytest.mark.walk
@pytest.mark.ray
@pytest.mark.timeout(1800)  # pilots of three plans have ten minutes each where the machine is busy
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page(page, tmp_path, monkeypatch, capfd, request):
    monkeypatch.chdir(tmp_path)
    if any("--runtime ray" in command for command in ALL[page]):
        request.getfixturevalue("ray_cluster")
    user_files(page, tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a user's own module is looked for where the command is given
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)  # another page's may have been loaded
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    for command in ALL[page]:
        if "profile_party" in command:  # the other party does the same
            assert call(command.replace("active", "passive").split(), tmp_path) == 0
    left_out, chosen = [], None
    for command in ALL[page]:
        if reason := why_not(page, command):
            left_out.append(f"{command}: {reason}")
            continue
        runs = sorted(tmp_path.glob("runs/*"), key=lambda path: path.stat().st_mtime_ns)
        if "RUN" in command.split():
            chosen = run_for(command, runs, chosen)
        paths = {"RUN": [chosen], "runs/A": runs[:1], "runs/B": runs[1:2], "runs/*": runs}
        words = [str(one) for word in command.split() for one in paths.get(word, [word])]
        code = call(words, tmp_path)
        assert code == 0, f"{command}: ends with {code}: {capfd.readouterr().err[-3000:]}"
    if len(left_out) == len(ALL[page]):
        pytest.skip("; ".join(left_out))


def run_for(command: str, runs: list[Path], before: Path | None) -> Path:
    """Return the run that RUN means: one on the data that the command names, else the one before, else the newest."""
    wanted = command.partition("--data ")[2].split()[:1]
    fitting = [run for run in runs if [json.loads((run / "config.json").read_text())["data"]] == wanted]
    return fitting[0] if fitting else before or runs[-1]


def call(words: list[str], folder: Path) -> int:
    """Run one command and return its exit code."""
    if words[0] == "python":
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, *words[1:]], cwd=folder, env=environment, check=False).returncode
    assert words[0] == "fedactors", words
    if words[1] == "run":
        data = words[words.index("--data") + 1] if "--data" in words else ""
        words += SMALLEST.get(f"{words[2]} {data}".strip(), SMALLEST.get(words[2], ["--smoke"]))
    if words[1] == "plan":
        words = [word.replace("target=0.92", "target=0.7") for word in words]  # which pilots come to soon
    if (words[1] == "run" or "--measure" in words) and "--runtime" not in words:
        words += ["--runtime", "simulated"]
    return cli.main([*words[1:]])


@pytest.mark.docs
def test_what_is_not_run_is_on_some_page():
    commands = [command for commands in ALL.values() for command in commands]
    for start in NOT_RUN:
        assert any(command.startswith(start.partition(" PAGE=")[0]) for command in commands), start


@pytest.mark.docs
@pytest.mark.parametrize("page", RESULTS)
def test_commands_of_a_results_page_name_scripts_and_settings_that_exist(page):
    """The scripts themselves are run, in their smallest size, by the tests of the scenarios."""
    for command in ALL[page]:
        words = command.split()
        if words[:2] == ["fedactors", "run"]:
            args = parsers()[1]["run"].parse_intermixed_args(words[2:])
            build_given(find_protocol(args.protocol).Config, args.words)
            continue
        assert words[0] == "python", command
        script = ROOT / (words[2].replace(".", "/") if words[1] == "-m" else words[1].removesuffix(".py"))
        assert script.with_suffix(".py").is_file() or (script / "__main__.py").is_file(), command


@pytest.mark.docs
def test_the_synopsis_of_the_command_line_is_whole():
    """Every command and every long flag of the parser stands on the page, and no other."""
    page = (DOCS / "reference/command-line.md").read_text()
    _, commands = parsers()
    synopsis = {command.split()[1] for command in ALL["reference/command-line.md"]}
    assert synopsis == set(commands)
    known = {flag for parser in commands.values() for action in parser._actions for flag in action.option_strings}
    shown = set(re.findall(r"--[a-z][a-z0-9-]*", page))
    assert shown <= known | {"--resources"}, shown - known
    of_a_run = {flag for action in commands["run"]._actions for flag in action.option_strings if flag != "-h"}
    assert of_a_run - {"--help"} <= shown, of_a_run - shown
