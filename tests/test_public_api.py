"""What `import fedactors` offers: its names, frozen; that it is light; and every verb once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fedactors
from fedactors.errors import BadInput, Stopped

ROOT = Path(__file__).parents[1]
PUBLIC = """
    Actor ActorGroup BadInput Client Comparison Costs DataCenter DataMissing Diverged FedactorsError FederatedRuntime
    HostCapacity Link Messages Network ParameterServer PartyFailed PartyLost Protocol RayRuntime Ref Refused Resources
    Rounds Run RunResult Server SimulatedRuntime Stopped Table Work check_data cluster compare config graph
    horizontal inspect list_datasets list_protocols load_part load_run message relational remote run settings simulate
    sweep vertical wire_type
"""
SMALL = {"num_rounds": 2, "num_clients": 4}


def fresh(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def run() -> fedactors.Run:
    return fedactors.simulate("horizontal", seed=3, **SMALL)


# --- names ------------------------------------------------------------------------------------------------------------


def test_the_public_names_are_frozen():
    assert sorted(fedactors.__all__) == sorted(PUBLIC.split())
    assert set(fedactors.__all__) <= set(dir(fedactors))
    for name in fedactors.__all__:
        assert callable(getattr(fedactors, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        fedactors.nobody  # noqa: B018


def test_type_checkers_see_each_name():
    text = (ROOT / "fedactors/__init__.py").read_text()
    block = text[text.index("if TYPE_CHECKING") : text.index("__version__")]
    names = set(re.findall(r"\w+", re.sub(r"from [\w.]+ import", "", block)))
    assert set(fedactors.__all__) <= names


def test_import_loads_nothing_heavy_and_a_name_loads_its_own(tmp_path):
    code = """
import sys, fedactors
heavy = {"torch", "ray", "pydantic", "pyarrow", "numpy", "pandas", "scipy"}
assert not heavy & set(sys.modules)
assert "fedactors.api" not in sys.modules
fedactors.run, fedactors.simulate, fedactors.BadInput
assert not heavy & set(sys.modules), heavy & set(sys.modules)
fedactors.Network
assert "ray" not in sys.modules and "torch" not in sys.modules
"""
    done = fresh(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_config_is_a_decorator_whether_or_not_its_module_is_loaded(tmp_path):
    code = """
import fedactors
for loaded in (False, True):
    @fedactors.config
    class Settings:
        \"\"\"Of a test.\"\"\"
        steps: int = 3
    assert Settings(steps=4).steps == 4
    import fedactors.config
"""
    done = fresh(code, tmp_path)
    assert done.returncode == 0, done.stderr


# --- a script ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_new_users_script(tmp_path):
    code = """
import fedactors
run = fedactors.simulate("pubsub-vfl", num_epochs=3)
rounds = run.rounds.to_pandas()
assert list(rounds["round"]) == [1, 2, 3], rounds
print(run)
"""
    done = fresh(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<Run pubsub-vfl seed 0 at ")
    assert list(tmp_path.iterdir()) == []


# --- each verb --------------------------------------------------------------------------------------------------------


def test_a_run_is_tables(run):
    assert run.status == "finished"
    assert run.protocol == "horizontal"
    assert run.config["num_rounds"] == 2
    assert run.metrics == dict(run.summary.metrics)
    assert run.rounds["round"] == [1, 2]
    assert {"sender", "receiver", "bytes"} <= set(run.ledger.columns)
    sent = [row["bytes"] for row in run.ledger if "driver" not in (row["sender"], row["receiver"])]
    assert sum(sent) == run.summary.bytes
    assert {"actor", "kind", "start", "end"} <= set(run.timeline.columns)
    assert run.privacy.to_arrow().num_rows == len(run.privacy)
    assert "horizontal seed 3" in repr(run)
    shown = run._repr_html_()
    assert "<caption>horizontal</caption>" in shown
    # a picture that needs no style of a page
    assert shown.count("<circle ") == 2
    assert "class=" not in shown
    assert "var(" not in shown


def test_a_table_goes_to_pandas_polars_and_arrow(run, monkeypatch):
    rounds = run.rounds
    assert len(rounds) == len(list(rounds)) == 2
    assert rounds.to_arrow().column_names == rounds.columns
    assert list(rounds.to_pandas()["round"]) == [1, 2]
    assert rounds.to_polars()["round"].to_list() == [1, 2]
    assert "[2 rows]" in repr(rounds)
    assert "<th>round</th>" in rounds._repr_html_()
    with pytest.raises(KeyError, match="no column 'auc'"):
        rounds["auc"]
    for package in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(BadInput, match=f"{package} is not installed: pip install {package}"):
            getattr(rounds, f"to_{package}")()


def test_cells_of_several_types_and_missing_ones_make_a_table():
    table = fedactors.Table([{"a": 1, "b": [1, 2]}, {"a": "x", "c": None}])
    assert table.columns == ["a", "b", "c"]
    assert table["a"] == ["1", '"x"']
    assert table["b"] == [[1, 2], None]
    assert len(fedactors.Table([])) == 0
    assert repr(fedactors.Table([])).endswith("[0 rows]")


def test_nothing_stays_of_a_simulated_run():
    run = fedactors.simulate("horizontal", **{**SMALL, "num_rounds": 1})
    path = run.path
    assert path.is_dir()
    del run
    assert not path.exists()


@pytest.mark.slow
def test_a_simulated_run_is_kept_resumed_and_opened_again(tmp_path):
    run = fedactors.simulate("horizontal", out=tmp_path, **SMALL)
    again = run.resume()
    assert again.path.parent == run.path.parent == tmp_path
    assert again.rounds["round"] == [1, 2]
    found = fedactors.load_run(run.path)
    assert found.metrics == run.metrics == again.metrics
    page = found.report()
    assert page == run.path / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(BadInput, match="nowhere"):
        fedactors.load_run(tmp_path / "nowhere")


@pytest.mark.slow
def test_the_network_and_faults_are_the_simulations(run):
    slow = fedactors.Network(default=fedactors.Link(latency=5.0, bandwidth=1e4))
    slower = fedactors.simulate("horizontal", seed=3, network=slow, **SMALL)
    assert slower.summary.seconds > run.summary.seconds + 5
    assert slower.metrics == run.metrics
    with pytest.raises(fedactors.PartyLost):
        fedactors.simulate("horizontal", faults={run.ledger["sender"][-1]: 0.0}, **SMALL)


@pytest.mark.slow
def test_export_load_part_and_audit(tmp_path):
    run = fedactors.simulate("horizontal", out=tmp_path / "runs", **SMALL)
    files = run.export(tmp_path / "model")
    party = next(iter(files))
    assert all(path.is_file() for paths in files.values() for path in paths)
    assert fedactors.load_part(tmp_path / "model" / party) is not None
    assert run.audit().refuted == []
    with pytest.raises(BadInput, match="colour: unknown option"):
        run.predict("breast-cancer", colour="red")


@pytest.mark.slow
def test_predict_on_own_rows(tmp_path):
    rows = [(number % 7 - 3.0, number % 5 - 2.0) for number in range(120)]
    bank = ["income,defaulted", *(f"{a},{int(a + b > 0)}" for a, b in rows)]
    (tmp_path / "bank.csv").write_text("\n".join(bank))
    (tmp_path / "shop.csv").write_text("\n".join(["orders", *(str(b) for _, b in rows)]))
    local = tmp_path / "parties.toml"
    local.write_text(
        '[task]\ntype = "binary"\n[parties.bank]\npath = "bank.csv"\nlabel = "defaulted"\n'
        '[parties.shop]\npath = "shop.csv"\n'
    )
    run = fedactors.simulate("pubsub-vfl", local, num_epochs=1, batch_size=32)
    found = run.predict(local, tmp_path / "p.csv")
    assert [(one.party, one.counts.num_predicted) for one in found.outcomes] == [("bank", 120)]
    assert (tmp_path / "p.csv").is_file()
    with pytest.raises(BadInput, match="opened only if you name them as well"):
        run.resume()
    assert run.resume(data=local).metrics == run.metrics


@pytest.mark.slow
def test_sweep_and_compare(run):
    found = fedactors.sweep("horizontal", {**SMALL, "num_rounds": [1, 2]}, seeds=(0, 3))
    assert found["num_rounds"] == [1, 1, 2, 2]
    assert found["seed"] == [0, 3, 0, 3]
    assert set(found["status"]) == {"finished"}
    other = fedactors.simulate("horizontal", seed=3, **{**SMALL, "num_rounds": 1})
    comparison = fedactors.compare(run, other)
    assert len(set(comparison.groups["label"])) == 2
    assert set(comparison.differences["label"]) < set(comparison.groups["label"])
    assert comparison.as_dict()["groups"][0]["seeds"] == [3]
    assert "<table>" in comparison._repr_html_()
    with pytest.raises(BadInput, match="at least one run"):
        fedactors.compare()


def test_what_there_is():
    assert "pubsub-vfl" in fedactors.list_protocols()["name"]
    assert "breast-cancer" in fedactors.list_datasets()["name"]
    assert "num_epochs" in fedactors.settings("pubsub-vfl")["name"]
    messages = fedactors.inspect("pubsub-vfl", num_epochs=3)
    assert messages.messages
    assert {"sender", "reveals"} <= set(messages.table.columns)
    assert "<table>" in messages._repr_html_()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fedactors.simulate("pubsub", num_epochs=1), "unknown protocol 'pubsub'"),
        (lambda: fedactors.simulate("horizontal", num_round=1), "num_round: unknown key; did you mean num_rounds"),
        (lambda: fedactors.simulate("horizontal", by_rows=1), "by_rows: unknown key"),
        (lambda: fedactors.simulate("horizontal", num_rounds=0), "num_rounds: .*0.* is not allowed"),
        (lambda: fedactors.simulate("horizontal", [1, 2]), "data: list is not allowed: give the name of a data set"),
        (lambda: fedactors.simulate("horizontal", "nowhere.toml"), "'nowhere.toml' does not exist"),
        (lambda: fedactors.simulate("horizontal", seed=-1), "seed: '-1' is not allowed: a whole number"),
        (lambda: fedactors.run("horizontal", runtime="thread"), "runtime: 'thread' is not allowed: ray, simulated"),
        (lambda: fedactors.inspect("horizontal", num_rounds="x"), "num_rounds: 'x' is not allowed"),
    ],
)
def test_bad_input_is_one_line_that_names_the_setting(call, said):
    with pytest.raises(BadInput, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- inside a running event loop --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_inside_a_running_loop_is_the_same(run):
    async def main() -> fedactors.Run:
        return fedactors.simulate("horizontal", seed=3, **SMALL)

    before = signal.getsignal(signal.SIGINT)
    assert asyncio.run(main()).metrics == run.metrics
    assert signal.getsignal(signal.SIGINT) is before


def interrupt_when(condition) -> threading.Thread:
    def wait() -> None:
        deadline = time.monotonic() + 60
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("in_loop", [False, True])
def test_ctrl_c_stops_the_run_with_a_checkpoint(tmp_path, in_loop):
    def go() -> None:
        fedactors.simulate("horizontal", out=tmp_path, **{**SMALL, "num_rounds": 5000})

    async def main() -> None:
        go()

    thread = interrupt_when(lambda: any(file.stat().st_size for file in tmp_path.glob("*/metrics/round_metrics.jsonl")))
    with pytest.raises(Stopped) as caught:
        asyncio.run(main()) if in_loop else go()
    thread.join()
    assert caught.value.exit_code == 130
    (path,) = tmp_path.iterdir()
    stopped = fedactors.load_run(path)
    assert stopped.status == "stopped"
    assert stopped.folder.manifest["checkpoints"]
    assert "stopped" in repr(stopped)
    assert "stopped" in stopped._repr_html_()
    with pytest.raises(BadInput, match="no summary"):
        _ = stopped.metrics


@pytest.mark.slow
@pytest.mark.parametrize("in_loop", [False, True])
def test_ctrl_c_before_the_run_began_ends_it(tmp_path, monkeypatch, in_loop):
    from fedactors import launch

    reading = threading.Event()

    def slow(*args: object, **more: object) -> None:
        reading.set()
        for _ in range(1000):
            time.sleep(0.01)

    monkeypatch.setattr(launch, "load_data", slow)
    thread = interrupt_when(reading.is_set)

    async def main() -> None:
        fedactors.simulate("horizontal", out=tmp_path, **SMALL)

    with pytest.raises(Stopped, match="before the first round"):
        asyncio.run(main()) if in_loop else fedactors.simulate("horizontal", out=tmp_path, **SMALL)
    thread.join()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_on_ray_inside_a_running_loop(tmp_path):
    async def main() -> fedactors.Run:
        return fedactors.run("horizontal", out=tmp_path, num_rounds=1, num_clients=2)

    found = asyncio.run(main())
    assert (found.status, found.summary.runtime) == ("finished", "ray")


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_line_of_the_page_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs/reference/python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    verbs = [name for name in fedactors.__all__ if name.islower() and name not in ("config", "message", "remote")]
    assert [name for name in verbs if f"fedactors.{name}(" not in "".join(blocks) and name != "wire_type"] == []
