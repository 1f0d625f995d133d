"""Predictions online: the same numbers as `predict`, between sites and within one folder; whom they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pytest

import fedactors
from fedactors.api import Run
from fedactors.cli.main import main
from fedactors.data.alignment.ids import AlignmentOrder, AlignmentQuestion, announce_order, make_key
from fedactors.data.columns import ColumnRule, FittedColumn, Preprocessing
from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.federation import online
from fedactors.federation.online import (
    MOST_ALIGNMENTS,
    MOST_IDS,
    Contributions,
    Loop,
    PredictionServer,
    Predictor,
    RemoteContributor,
    RowsById,
    contributions,
    loaded,
    predictions,
    read_rows,
)
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import to_vector
from fedactors.runtime.addresses import free_port
from fedactors.serving.parts import Part, TrainedModel, contribution, fused_output, probabilities
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, CLINIC, SHOP, World

TOKEN = "the token of this test"
JSON = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


def ask(server: PredictionServer, body: Any, path: str = "/predict", **headers: str | None) -> tuple[int, Any]:
    given = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with contextlib.closing(connection):
        connection.request("POST", path, raw, {name: value for name, value in given.items() if value is not None})
        found = connection.getresponse()
        return found.status, json.loads(found.read())


def until_ready(server: PredictionServer, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not server.is_ready:
        assert time.monotonic() < end
        time.sleep(0.02)


# --- a whole model ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A horizontal run on tables, and new rows, one of which misses a number."""
    folder = tmp_path_factory.mktemp("whole")
    rng = np.random.default_rng(3)
    values = rng.normal(size=(240, 3))
    labels = (values.sum(axis=1) > 0).astype(int)
    lines = [",".join(f"{x:.4f}" for x in row) + f",{label}\n" for row, label in zip(values, labels, strict=True)]
    for name, part in (("east", lines[:90]), ("west", lines[90:180]), ("test", lines[180:])):
        (folder / f"{name}.csv").write_text("a,b,c,sick\n" + "".join(part))
    new = [f"p{n}," + ",".join(f"{x:.4f}" for x in row) + "\n" for n, row in enumerate(values[:60])]
    new[7] = "p7,0.5,,0.25\n"
    (folder / "new.csv").write_text("patient,a,b,c\n" + "".join(new))
    task = '[task]\ntype = "binary"\nlayout = "horizontal"\nclasses = ["0", "1"]\ntest = "test.csv"\n'
    parties = "".join(f'[parties.{name}]\npath = "{name}.csv"\nlabel = "sick"\n' for name in ("east", "west"))
    (folder / "parties.toml").write_text(task + parties)
    run = fedactors.simulate("horizontal", str(folder / "parties.toml"), out=str(folder / "runs"), num_rounds=2)
    new_parties = f'{task}[parties.east]\npath = "{folder / "new.csv"}"\nid = "patient"\n'
    (folder / "new.toml").write_text(new_parties.replace("test.csv", str(folder / "test.csv")))
    return run, folder


@pytest.mark.slow
def test_answers_are_the_numbers_of_predict(whole: tuple[Run, Path], tmp_path: Path) -> None:
    run, folder = whole
    run.predict(str(folder / "new.toml"), tmp_path / "east.csv")
    table = pa_csv.read_csv(tmp_path / "east.csv").to_pylist()
    parts, model = run.parts()
    assert list(parts) == ["server"]
    assert run.path.name in model
    log: list[dict[str, Any]] = []
    rows = {"server": folder / "new.csv"}
    with predictions(parts, rows, ("127.0.0.1", 0), TOKEN, id_column="patient", log=log.append) as server:
        ids = [f"p{n}" for n in range(60)]
        status, found = ask(server, {"ids": ids})
        assert status == 200
        for line, one in zip(table, found["predictions"], strict=True):
            assert str(line["id"]) == one["id"]
            if one["id"] == "p7":
                assert one["prediction"] is None
                assert one["reason"] == line["reason"] == "b: missing"
                continue
            assert str(line["prediction"]) == one["prediction"]
            for name in "01":
                assert line[f"probability_{name}"] == pytest.approx(one["probability"][name], abs=1e-9)
        _, single = ask(server, {"ids": ["p11"]})
        assert single["predictions"][0]["probability"] == pytest.approx(found["predictions"][11]["probability"])
        assert ask(server, {"ids": ["p1", "nobody", "p1"]})[1]["predictions"][1] == {
            "id": "nobody",
            "prediction": None,
            "reason": "no such row",
        }
        columns = {name: [float(v)] for name, v in zip("abc", (0.5, 1, -2), strict=True)}
        status, fresh = ask(server, {"rows": columns})
        assert (status, set(fresh["predictions"][0])) == (200, {"prediction", "probability"})
        assert ask(server, {"rows": {"a": [1.0], "b": [1.0]}}) == (
            400,
            {"error": "rows: column 'c', which the model was trained on, is absent"},
        )
    assert [one["ids"] for one in log] == [60, 1, 3, 1, 1]
    assert [one["predicted"] for one in log] == [59, 1, 2, 1, 0]
    assert not any("p1" in json.dumps(one) for one in log), "ids are in no log"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rows", "new.csv", "--from", "shop=h:1"), "--folder: missing: the folder of this site"),
        (("--rows", "new.csv", "--for", "bank", "--most-rows", "5"), "--folder: missing: the folder of this site"),
        (("--rows", "new.csv", "--most-rows", "5"), "--most-rows: goes with --for"),
        (("--rows", "new.csv", "--rows", "east=new.csv"), "--rows: 'new.csv' is not allowed: give PARTY=FILE once"),
        (("--rows", "nowhere.csv"), "nowhere.csv"),
        (("--rows", "new.csv", "--id", "name"), "column 'name' is absent"),
        (("--rows", "twice.csv", "--id", "patient"), "'p1' is the id of several rows"),
        (("--rows", "new.csv", "--listen", "nowhere"), "--listen: 'nowhere' is not allowed: give HOST:PORT"),
        (("--rows", "new.csv", "--token-file", "nowhere/token"), "token"),
    ],
)
def test_words_that_are_wrong_end_with_a_line(
    whole: tuple[Run, Path], words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run, folder = whole
    monkeypatch.chdir(folder)
    (folder / "twice.csv").write_text("patient,a,b,c\np1,1,1,1\np2,1,1,1\np1,2,2,2\n")
    assert main(["serve", str(run.path), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "serve.token").exists()


# --- whom and what the server refuses: a model of one number ---


def part_of(party: str, parties: tuple[str, ...], **facts: Any) -> Part:
    """A part whose bottom is one layer over two columns."""
    spec = ModelSpec(name="linear", inputs=(2,), outputs=1)
    columns = tuple(FittedColumn(name=name, rule=ColumnRule()) for name in ("x", "y"))
    fitted = replace(Preprocessing.unmeasured(columns), alignment="psi")
    models = {"bottom": TrainedModel(spec, to_vector(build_model(spec, 3)))}
    return Part(
        protocol="test", party=party, task="binary", num_classes=2, class_names=("no", "yes"), parties=parties,
        models=models, preprocessing=fitted, fusion="sum", **facts,
    )  # fmt: skip


def rows_of(ids: list[str]) -> RowsById:
    return RowsById(np.array(ids), np.random.default_rng(1).normal(size=(len(ids), 2)).astype(np.float32), {})


@pytest.fixture(scope="module")
def server() -> Iterator[PredictionServer]:
    predictor = Predictor(loaded(part_of("a", ("a",))), rows_of(["r1", "r2"]), {})
    loop = Loop()
    made = PredictionServer(predictor, ("127.0.0.1", 0), TOKEN, loop.call, lambda _: None)
    with made.answering():
        yield made
    loop.stop()


@pytest.mark.parametrize(
    "token", [None, "", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN} ", TOKEN, "Bearer é"]
)
def test_nobody_is_answered_without_the_token(server: PredictionServer, token: str | None) -> None:
    status, found = ask(server, {"ids": ["r1"]}, Authorization=token)
    assert status == 401
    assert "predictions" not in found


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff", b"{}", b'{"ids": []}', b'{"ids": "r1"}', b'{"ids": [1]}',
        b'{"ids": [null]}', b'{"ids": [["r1"]]}', b'{"ids": ["r1"], "rows": {}}', b'{"rows": {}}', b'{"rows": []}',
        b'{"rows": {"x": 1, "y": 2}}', b'{"rows": {"x": [], "y": []}}', b'{"rows": {"x": [1], "y": [1, 2]}}',
        b'{"rows": {"x": [true], "y": [1]}}', b'{"rows": {"x": [null], "y": [1]}}', b'{"rows": {"x": [{}], "y": [1]}}',
        b'{"rows": {"x": [1, "a"], "y": [1, 2]}}', b'{"ids": ["r1"], "x": 1}', b"[" * 100_000,
        json.dumps({"ids": ["r1"] * (MOST_IDS + 1)}).encode(), b'{"rows": {"x": [1]}}',
    ],
    ids=range(27),
)  # fmt: skip
def test_what_is_no_question_is_refused_and_the_next_is_answered(server: PredictionServer, body: bytes) -> None:
    status, found = ask(server, body)
    assert status == 400
    assert found.keys() == {"error"}
    assert ask(server, {"ids": ["r1"]})[0] == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 404),
        ("/predict/", {}, 404),
        ("/predict?x=1", {}, 404),
        ("/predict", {"Content_Type": "text/plain"}, 400),
        ("/predict", {"Content_Type": "application/x-www-form-urlencoded"}, 400),
        ("/predict", {"Content_Length": "99999999"}, 400),
        ("/predict", {"Content_Length": "-1"}, 400),
        ("/predict", {"Content_Length": "x"}, 400),
    ],
)
def test_other_requests_are_refused(server: PredictionServer, path: str, headers: Any, status: int) -> None:
    assert ask(server, {"ids": ["r1"]}, path, **headers)[0] == status


def test_numbers_that_are_none_get_no_prediction(server: PredictionServer) -> None:
    for number in ("NaN", "Infinity", "-Infinity"):  # which JSON does not know
        assert ask(server, b'{"rows": {"x": [%s, 1.0], "y": [1, 2]}}' % number.encode())[0] == 400
    status, found = ask(server, b'{"rows": {"x": [1e999, 1.0], "y": [1, 2]}}')
    assert status == 200
    first, second = found["predictions"]
    assert first["prediction"] is None
    assert first["reason"]
    assert second["prediction"] in ("no", "yes")


def test_what_breaks_is_an_answer_without_words(server: PredictionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(server.predictor, "predict_rows", fail)
    status, found = ask(server, {"rows": {"x": [1.0], "y": [1.0]}})
    assert (status, found) == (500, {"error": "RuntimeError: see the log of fedactors serve"})


def test_many_at_once_are_all_answered_rightly(server: PredictionServer) -> None:
    _, want = ask(server, {"ids": ["r1", "r2"]})
    wrong: list[Any] = []

    def work(one: int) -> None:
        for _ in range(20):
            status, found = ask(server, {"ids": [f"r{one % 2 + 1}"]})
            if status != 200 or found["predictions"] != [want["predictions"][one % 2]]:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert wrong == []
    found = server.status()
    assert found["p50_ms"] <= found["p99_ms"]
    assert found["requests"] >= 160


def test_whoever_is_silent_blocks_nobody(server: PredictionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online.PredictionHandler, "timeout", 0.5)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(60)]
    end, status = time.monotonic() + 8, 0
    while status != 200 and time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = ask(server, {"ids": ["r1"]})[0]
    assert status == 200
    for one in silent:
        one.close()


def test_ids_that_occur_twice_are_refused() -> None:
    with pytest.raises(BadInput, match=r"--rows: 'r1' is the id of several rows"):
        rows_of(["r1", "r2", "r1"])


def test_what_is_served_needs_all_parties_and_a_table() -> None:
    part = part_of("a", ("a", "b"))
    with pytest.raises(BadInput, match=r"serve: the model needs b too: give --rows or --from"):
        Predictor(loaded(part), rows_of(["r1"]), {})
    with pytest.raises(BadInput, match="the part of a is no model over rows of a table"):
        loaded(replace(part, preprocessing=None))
    with pytest.raises(BadInput, match="the part of a is a whole model"):
        Contributions(loaded(part_of("a", ("a",))), rows_of(["r1"]), 5, np.random.default_rng(0))


# --- what another party gives ---


def given_by(ids: list[str], most_rows: int | None = 50, **facts: Any) -> Contributions:
    return Contributions(loaded(part_of("b", ("a", "b"), **facts)), rows_of(ids), most_rows, np.random.default_rng(7))


def ordered(given: Contributions, ids: list[str]) -> bytes:
    """Tell a party an order of these ids; return its salt."""
    _, salt, digests = announce_order(np.array(ids), np.arange(len(ids)), np.random.default_rng(2))
    asyncio.run(given.take_order(AlignmentOrder(salt, digests, np.zeros(0, np.uint8))))
    return salt


def positions(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def test_noise_is_drawn_once_for_as_long_as_a_party_serves() -> None:
    given = given_by(["r1", "r2", "r3"], sigma=0.5, clip_norm=1.0)
    salt = ordered(given, ["r3", "r1"])
    first, _ = asyncio.run(given.contribute(positions(0, 1), salt))
    again = [asyncio.run(given.contribute(positions(0, 1), salt))[0] for _ in range(5)]
    assert all((one == first).all() for one in again), "asking often averages nothing out"
    bare = given_by(["r1", "r2", "r3"])
    plain, _ = asyncio.run(bare.contribute(positions(0, 1), ordered(bare, ["r3", "r1"])))
    assert not np.allclose(first, plain, atol=1e-3)
    assert given.privacy is not None
    assert given.privacy.epsilon > 0
    assert bare.privacy is None


def test_a_party_gives_so_many_rows_and_no_more() -> None:
    given = given_by(["r1", "r2"], most_rows=5)
    salt = ordered(given, ["r1", "r2"])
    for _ in range(2):
        asyncio.run(given.contribute(positions(0, 1), salt))
    with pytest.raises(Refused, match=r"gave 4 of 5 rows: .* larger --most-rows"):
        asyncio.run(given.contribute(positions(0, 1), salt))
    asyncio.run(given.contribute(positions(1), salt))
    assert given.num_given == 5


@pytest.mark.parametrize("numbers", [(2,), (-1,), (0, 1, 2), tuple([0] * (MOST_IDS + 1))])
def test_rows_that_are_not_shared_are_not_given(numbers: tuple[int, ...]) -> None:
    given = given_by(["r1", "r2", "r3"], most_rows=10_000)
    salt = ordered(given, ["r1", "r2"])
    with pytest.raises(Refused, match="rows that are not shared, or for too many"):
        asyncio.run(given.contribute(positions(*numbers), salt))
    assert given.num_given == 0


def test_places_of_an_earlier_order_mean_no_rows() -> None:
    given = given_by(["r1", "r2"])
    before = ordered(given, ["r1", "r2"])
    ordered(given, ["r2", "r1"])
    with pytest.raises(Refused, match="no longer the common one"):
        asyncio.run(given.contribute(positions(0), before))


def test_alignments_are_few_because_each_tells_which_ids_are_there() -> None:
    given = given_by(["r1"])
    assert given.part.preprocessing is not None
    given.part = replace(given.part, preprocessing=replace(given.part.preprocessing, alignment="hash"))
    for _ in range(MOST_ALIGNMENTS):
        asyncio.run(given.answer_alignment(AlignmentQuestion("hash", make_key())))
    with pytest.raises(Refused, match="answered 10 alignments"):
        asyncio.run(given.answer_alignment(AlignmentQuestion("hash", make_key())))


# --- a vertical model ---


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three sites, two of which have trained; the shop has customers that the bank has not, and the other way round."""
    made = World(tmp_path_factory.mktemp("online"), (BANK, SHOP, CLINIC))
    for name in (BANK, SHOP):
        made.start(name)
    made.names = (BANK, SHOP)
    site = made.path / BANK / "site.toml"
    site.write_text(site.read_text().replace('alignment = "already-aligned"', 'alignment = "psi"'))
    for name, text in (
        (BANK, '[data.new]\npath = "new.csv"\nid = "id"\n'),
        (SHOP, '[data.new]\npath = "new.csv"\nid = "id"\n'),
    ):
        file = made.path / name / "site.toml"
        file.write_text(f"{file.read_text()}\n{text}")
    bank = (made.path / BANK / "customers.csv").read_text().splitlines()
    shop = (made.path / SHOP / "orders.csv").read_text().splitlines()
    (made.path / BANK / "new.csv").write_text("\n".join([re.sub(",[^,]*$", "", one) for one in bank[:41]]) + "\n")
    (made.path / SHOP / "new.csv").write_text("\n".join([shop[0], *shop[60:10:-1], "c0,nonsense,1"]) + "\n")
    assert federated(made, SMALL) == 0, made.output
    yield made
    made.stop()


def parts_at(world: World, site: str) -> tuple[Part, str]:
    (folder,) = (world.path / site / "runs").glob("*-0")
    parts, model = Run(folder).parts()
    assert list(parts) == [site]
    return parts[site], model


def between(world: World) -> Any:
    """Serve at both sites; yield the HTTP server, what the shop gives, and its lines."""

    @contextlib.contextmanager
    def serving(most_rows: int = 1000, to: str = BANK, other: str | None = None) -> Iterator[Any]:
        (bank, model), (shop, theirs) = parts_at(world, BANK), parts_at(world, SHOP)
        lines: list[str] = []
        ends = {"to": to, "model": theirs if other is None else other, "most_rows": most_rows, "tell": lines.append}
        folder = world.folder(BANK)
        with contributions(world.folder(SHOP), shop, "new", ("127.0.0.1", 0), **ends) as (port, given):
            member = replace(folder.federation.members[SHOP], host="127.0.0.1", port=port)
            remote = [RemoteContributor(folder, member, model)]
            rows = {BANK: folder.rows_file("new")}
            tell = {"remote": remote, "tell": lines.append}
            with predictions({BANK: bank}, rows, ("127.0.0.1", 0), TOKEN, **tell) as server:
                yield server, given, lines

    return serving


@pytest.mark.slow
def test_two_sites_answer_as_one_folder_would(world: World) -> None:
    ids = [f"c{n}" for n in range(45)]
    (bank, model), (shop, _) = parts_at(world, BANK), parts_at(world, SHOP)
    rows = {name: world.folder(name).rows_file("new") for name in (BANK, SHOP)}
    with predictions({BANK: bank, SHOP: shop}, rows, ("127.0.0.1", 0), TOKEN) as server:
        status, local = ask(server, {"ids": ids})
        assert status == 200
    with between(world)() as (server, given, _):
        until_ready(server)
        status, found = ask(server, {"ids": ids})
        assert status == 200
        assert found == local
        assert given.num_given == 31, "one row there cannot be used, and is asked for"
        status, single = ask(server, {"ids": ["c20"]})
        assert single["predictions"][0]["probability"] == pytest.approx(
            found["predictions"][20]["probability"], abs=1e-6
        )
        assert ask(server, {"rows": {"income": [1.0], "age": [1.0]}})[0] == 400
    by_id = {one["id"]: one for one in found["predictions"]}
    assert by_id["c44"]["reason"] == "no such row"
    assert by_id["c5"]["reason"] == "not at shop"
    assert by_id["c0"]["reason"] == "shop cannot use its row"
    assert by_id["c12"]["prediction"] in ("0", "1")
    # by hand: the top over both bottoms
    mine, theirs = read_rows(bank, rows[BANK]), read_rows(shop, rows[SHOP])
    values = [
        contribution(part, those.features[[those.row_of["c12"]]]) for part, those in ((bank, mine), (shop, theirs))
    ]
    expected = probabilities(bank, fused_output(bank, values))[0]
    assert list(by_id["c12"]["probability"].values()) == pytest.approx(expected.tolist(), abs=1e-6)
    opened, closed = [line for line in world.audit(SHOP) if line["what"] in ("serving", "served")][-2:]
    assert (opened["to"], opened["most_rows"], opened["model"]) == (BANK, 1000, model)
    assert (closed["given"], closed["alignments"], closed["refused"]) == (32, 1, 0)


@pytest.mark.slow
def test_a_party_that_went_away_is_named_and_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "_LIMITS", replace(online._LIMITS, away=0.5, call=3.0))
    monkeypatch.setattr(online, "_AGAIN_SECONDS", 0.1)
    (bank, model), (shop, _) = parts_at(world, BANK), parts_at(world, SHOP)
    folder, port = world.folder(BANK), free_port()
    remote = RemoteContributor(folder, replace(folder.federation.members[SHOP], host="127.0.0.1", port=port), model)
    lines: list[str] = []
    ends = {"to": BANK, "model": model, "most_rows": 100, "tell": lines.append}
    rows = {BANK: folder.rows_file("new")}
    with predictions({BANK: bank}, rows, ("127.0.0.1", 0), TOKEN, remote=[remote], tell=lines.append) as server:
        assert ask(server, {"ids": ["c12"]})[0] == 503
        answers = []
        for _ in range(2):
            with contributions(world.folder(SHOP), shop, "new", ("127.0.0.1", port), **ends):
                until_ready(server)
                status, found = ask(server, {"ids": ["c12"]})
                assert status == 200
                answers.append(found)
            begun = time.monotonic()
            status, found = ask(server, {"ids": ["c12"]})
            assert (status, list(found)) == (503, ["error"])
            assert time.monotonic() - begun < 5
            end = time.monotonic() + 10
            while server.is_ready:
                assert time.monotonic() < end
                time.sleep(0.05)
        assert answers[0] == answers[1]
    assert any("shop" in line and "does not answer" in line for line in lines), lines


@pytest.mark.slow
def test_a_budget_of_rows_ends_answers_with_a_reason(world: World) -> None:
    with between(world)(most_rows=3) as (server, given, _):
        until_ready(server)
        assert ask(server, {"ids": ["c12", "c13", "c14"]})[0] == 200
        status, found = ask(server, {"ids": ["c15"]})
        assert status == 503
        assert "--most-rows" in found["error"]
        assert given.num_given == 3
    assert [line for line in world.audit(SHOP) if line["what"] == "served"][-1]["refused"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("facts", "said"), [({"other": "0123456789abcdef 4"}, "another model or checkpoint")])
def test_parts_of_different_models_are_never_fused(world: World, facts: Any, said: str) -> None:
    with between(world)(**facts) as (server, given, lines):
        end = time.monotonic() + 20
        while not any(said in line for line in lines):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not server.is_ready
        assert ask(server, {"ids": ["c12"]})[0] == 503
        assert (given.num_given, given.num_alignments) == (0, 0)


@pytest.mark.slow
def test_only_the_site_with_the_labels_may_ask(world: World) -> None:
    shop, model = parts_at(world, SHOP)
    with (
        pytest.raises(BadInput, match=r"--for: 'clinic' is not allowed: bank has the labels"),
        contributions(world.folder(SHOP), shop, "new", ("127.0.0.1", 0), to=CLINIC, model=model, most_rows=5),
    ):
        pass
    lines: list[str] = []
    ends: dict[str, Any] = {"to": BANK, "model": model, "most_rows": 5, "tell": lines.append}
    with contributions(world.folder(SHOP), shop, "new", ("127.0.0.1", 0), **ends) as (port, given):
        clinic = world.folder(CLINIC)
        member = replace(clinic.federation.members[SHOP], host="127.0.0.1", port=port)

        async def knock() -> None:
            await RemoteContributor(clinic, member, model).connect()

        with pytest.raises((Refused, PartyLost)):
            asyncio.run(knock())
        with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:  # and who shows no certificate
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(OSError):
                assert b"200" not in raw.recv(100)
        assert (given.num_given, given.num_alignments) == (0, 0)
    assert any("clinic" in line and "answers bank alone" in line for line in lines), lines


@pytest.mark.slow
def test_what_is_no_question_gets_nothing(world: World) -> None:
    shop, model = parts_at(world, SHOP)
    ends: dict[str, Any] = {"to": BANK, "model": model, "most_rows": 5, "tell": lambda _: None}
    folder = world.folder(BANK)
    questions: list[Any] = [None, (), ("contribute",), ("contribute", [1], b""), ("contribute", np.zeros(1), b"")]
    questions += [("contribute", np.zeros((1, 1), np.int64), b""), ("contribute", np.zeros(1, np.int64), "x")]
    questions += [("contribute", np.zeros(1, np.int64), b""), ("fail", "x"), ("answer_alignment", "psi", b"x")]
    questions += [("take_order", b"x", np.zeros((1, 31), np.uint8)), ("take_order", b"", np.zeros((1, 32), np.uint8))]
    questions += [("take_order", b"x", np.zeros((1, 32), np.uint8)), ("answer_alignment", "hash", b"x" * 32)]
    with contributions(world.folder(SHOP), shop, "new", ("127.0.0.1", 0), **ends) as (port, given):
        remote = RemoteContributor(folder, replace(folder.federation.members[SHOP], host="127.0.0.1", port=port), model)
        answered = []

        async def ask_all() -> None:
            await remote.connect()
            assert remote._connection is not None
            for question in questions:
                try:
                    answered.append((question, await remote._connection.ask(question, "something")))
                except fedactors.FedactorsError:
                    continue
            remote.close()
            await asyncio.sleep(1.1)

        asyncio.run(ask_all())
        assert answered == []
        assert given.num_given == 0


def test_data_with_a_privacy_budget_are_not_served(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.path / SHOP / "site.toml"
    budget = "budget = { epsilon = 5.0, delta = 1e-5 }\n"
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', f'"orders.csv"\nid = "id"\n{budget}', 1))
    with pytest.raises(BadInput, match=r"data\.orders\.budget: predictions of such data are not counted"):
        world.folder(SHOP).rows_file("orders")
    with pytest.raises(BadInput, match="has no data named 'x'"):
        world.folder(SHOP).rows_file("x")
