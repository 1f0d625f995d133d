"""Files that users bring: descriptions, tables, graphs, databases, catalogues, networks, topologies."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tests.bad_inputs.cases import (
    Case,
    Change,
    array,
    arrays,
    cut,
    loop,
    make_folder,
    parquet,
    remove,
    replace,
    run,
    table,
    write,
)
from tests.bad_inputs.world import small

TOML = "parties.toml"
_MTCD = small("mtcd", "num_clients", "num_samples", "num_features")
_USER_DATA = {
    "vertical": ("pubsub-vfl", small("pubsub-vfl")),
    "mtcd": ("mtcd", f"{_MTCD} num_clients=2 relaxed_protocol=true problem=ridge"),
    "horizontal": ("nebulafl", f"{small('nebulafl', 'num_training', 'num_containers')} num_containers=2"),
    "relational": ("tablepuppet", small("tablepuppet")),
    "graph": ("glasu", f"{small('glasu')} num_clients=2"),
}


def user_data(layout: str, change: Change | tuple[Change, ...], *says: str, words: str = "", **more: Any) -> Case:
    """Return a case of a run on own data, spoilt by `change`."""
    protocol, settings = _USER_DATA[layout]
    base = "vertical" if layout == "mtcd" else layout
    changes = change if isinstance(change, tuple) else (change,)
    given = {word.partition("=")[0] for word in words.split()}
    settings = " ".join(word for word in settings.split() if word.partition("=")[0] not in given)
    return run(protocol, f"{settings} {words}", *says, flags=["--data", TOML], base=base, change=changes, **more)


def _descriptions() -> list[Case]:
    """Return what every layout refuses in its description."""
    made = []
    key = {"vertical": "path", "mtcd": "path", "horizontal": "path", "relational": "path", "graph": "file"}
    first = {"vertical": "bank", "mtcd": "bank", "horizontal": "a", "relational": "orders", "graph": "bank"}
    files = {"vertical": "bank.csv", "mtcd": "bank.csv", "horizontal": "a.csv", "relational": "orders.csv",
             "graph": "bank.npz"}  # fmt: skip
    for layout in _USER_DATA:
        party, file, path = first[layout], files[layout], key[layout]
        made += [
            user_data(layout, write(TOML, text), "task" if text in ("", "task = 3") else "data")
            for text in ("", "not toml [", b"\xff\xfe\x00\x01", "\0", "task = 3")
        ]
        made += [
            user_data(layout, write(TOML, "[parties.a]\n"), "task"),
            user_data(layout, replace(TOML, "[task]", "[tusk]"), "tusk"),
            user_data(layout, replace(TOML, "[task]", "[task]\ncolour = 1"), "colour"),
            user_data(
                layout,
                replace(TOML, f"[parties.{party}]", f"[parties.{party}]\ncolour = 1"),
                f"parties.{party}",
                "colour",
            ),
            user_data(
                layout, replace(TOML, f"[parties.{party}]", f'[parties.{party}]\nlayout = "x"'), f"parties.{party}"
            ),
            user_data(layout, replace(TOML, f'"{file}"', "3"), f"parties.{party}.{path}", "3"),
            user_data(layout, replace(TOML, f'"{file}"', '""'), f"parties.{party}.{path}"),
            user_data(layout, replace(TOML, f'"{file}"', "[]"), f"parties.{party}.{path}"),
            user_data(layout, replace(TOML, f'"{file}"', '"x\\u0000y"'), f"parties.{party}"),
            user_data(layout, loop(file), party),
            user_data(layout, make_folder(file), party, code=4 if layout == "relational" else 2),
            *(
                user_data(layout, write(file, content), party)
                for content in (b"", b"\x00" * 64, b"PK\x03\x04" + b"\x00" * 50)
            ),
            user_data(layout, write(file, bytes(range(128, 192))), party),
        ]
        if layout not in ("relational",):
            made.append(user_data(layout, remove(file), party))
            made.append(user_data(layout, replace(TOML, f'"{file}"', f'"{"a" * 300}{file[-4:]}"'), party))
            made.append(user_data(layout, replace(TOML, f'"{file}"', '"/proc/self/mem"'), party))
            made.append(user_data(layout, replace(TOML, f'"{file}"', '"/dev/null"'), party))
        names = ['"my bank"', '".."', '""', '"a/b"', '"driver"', '"broker"', '"server"', '"auditor"', '"-x"', '"é"',
                 f'"{"b" * 80}"', '"a\\u0000"', '"a\\nb"']  # fmt: skip
        if layout == "horizontal":
            names = names[:4]
        made += [
            user_data(layout, replace(TOML, f"[parties.{party}]", f"[parties.{name}]"), "parties") for name in names
        ]
    return made


_N = 60
_Z = [0.5] * _N
_SHOP = {"id": list(range(_N)), "spent": _Z, "visits": list(range(_N))}
_BANK = {"id": list(range(_N)), "age": list(range(_N)), "income": _Z, "bad": [0, 1] * (_N // 2)}


def _shop(**columns: Any) -> Change:
    return table("shop.csv", **{**_SHOP, **columns})


def _bank(**columns: Any) -> Change:
    return table("bank.csv", **{**_BANK, **columns})


def _vertical() -> list[Case]:
    made = []
    for layout in ("vertical", "mtcd"):
        made += [
            user_data(layout, replace(TOML, '"binary"', '"ranking"'), "task.type", "'ranking'"),
            user_data(layout, replace(TOML, '"binary"', "3"), "task.type"),
            user_data(layout, replace(TOML, '"binary"', '["binary"]'), "task.type"),
            user_data(layout, replace(TOML, 'type = "binary"\n', ""), "task.type"),
            user_data(layout, replace(TOML, '"binary"', '"multiclass"'), "task.classes"),
            user_data(layout, replace(TOML, '"binary"', '"multiclass"\nclasses = 1'), "task.classes"),
            user_data(layout, replace(TOML, '"binary"', '"multiclass"\nclasses = "two"'), "task.classes"),
            user_data(layout, replace(TOML, '"binary"', '"multiclass"\nclasses = 1000000000000'), "classes"),
            user_data(layout, replace(TOML, '"binary"', '"binary"\nclasses = 3'), "task.classes"),
            user_data(layout, replace(TOML, '"binary"', '"regression"\nclasses = 3'), "task.classes"),
            user_data(layout, replace(TOML, '"already-aligned"', '"fuzzy"'), "task.alignment"),
            user_data(layout, replace(TOML, '"already-aligned"', "1"), "task.alignment"),
            user_data(layout, replace(TOML, "[task]", '[task]\nlayout = "diagonal"'), "task.layout"),
            user_data(layout, replace(TOML, "[task]", '[task]\nlayout = "horizontal"'), "task"),
            user_data(layout, replace(TOML, 'label = "bad"\n', ""), "label"),
            user_data(layout, replace(TOML, "[task]", "[task]\nclass_weights = { 1 = inf }"), "task.class_weights"),
            user_data(layout, replace(TOML, "[task]", "[task]\nclass_weights = { 9 = 2.0 }"), "task.class_weights"),
            user_data(layout, replace(TOML, '"shop.csv"', '"shop.csv"\nweight = "visits"'), "parties.shop.weight", "'visits'"),
            user_data(layout, replace(TOML, '"shop.csv"', '"shop.csv"\nunlabelled = "drop"'), "parties.shop.unlabelled"),
            user_data(layout, (replace(TOML, '"bank.csv"', '"bank.csv"\nunlabelled = "drop"'), _bank(bad=[None] * _N)),
                "bank", "bad"),
            user_data(layout, replace(TOML, 'features = ["spent"', 'label = "town"\nfeatures = ["spent"'), "label"),
            user_data(layout, replace(TOML, 'label = "bad"', 'label = "good"'), "bank", "label", "'good'"),
            user_data(layout, replace(TOML, 'label = "bad"', "label = 3"), "parties.bank.label"),
            user_data(layout, replace(TOML, 'label = "bad"', 'label = "id"'), "bank", "label"),
            user_data(layout, replace(TOML, 'id = "id"', 'id = "key"'), "bank", "'key'"),
            user_data(layout, replace(TOML, 'id = "id"', "id = []"), "parties.bank.id"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["spent", "spend"]'), "shop", "'spend'"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["spent", "spent"]'), "parties.shop.features"),
            user_data(layout, replace(TOML, '["spent", "visits"]', "[]"), "shop", "feature"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '"most"'), "parties.shop.features"),
            user_data(layout, replace(TOML, '["spent", "visits"]', "[1]"), "parties.shop.features"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["id"]'), "shop", "features"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["spent", "town"]'), "shop", "town"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["visits"]\ncategorical = ["town"]'), "shop", "categorical"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["spent"]\ncategorical = ["spent"]'), "shop", "categorical"),
            user_data(layout, replace(TOML, '["spent", "visits"]', '["spent"]\ncategorical = 3'), "parties.shop.categorical"),
            user_data(layout, replace(TOML, '"shop.csv"', '"bank.csv"'), "parties.shop.path", "bank"),
            user_data(layout, replace(TOML, '"shop.csv"', '"./bank.csv"'), "parties.shop.path", "bank"),
            user_data(layout, replace(TOML, '"shop.csv"', '"shop.xlsx"'), "shop"),
            user_data(layout, (replace(TOML, '"shop.csv"', '"shop.xlsx"'), write("shop.xlsx", "x")), "shop", "path"),
            user_data(layout, replace(TOML, "[parties.shop]", "[parties.BANK]"), "parties", "BANK"),
            user_data(layout, _shop(spent=[float("nan"), *_Z[1:]]), "shop", "spent"),
            user_data(layout, _shop(spent=[float("inf"), *_Z[1:]]), "shop", "spent"),
            user_data(layout, _shop(spent=[1e300, *_Z[1:]]), "shop", "spent"),
            user_data(layout, _shop(spent=[None, *_Z[1:]]), "shop", "spent"),
            user_data(layout, _shop(spent=["much", *["1"] * (_N - 1)]), "shop", "spent"),
            user_data(layout, _bank(bad=[1] * _N), "bank", "label"),
            user_data(layout, _bank(bad=[None, *[0, 1] * 29, 1]), "bank", "bad"),
            user_data(layout, _bank(bad=list(range(_N))), "bank", "bad"),
            user_data(layout, _bank(bad=["yes", "no", "maybe"] * 20), "bank", "bad"),
            user_data(layout, table("shop.csv", id=list(range(9)), spent=_Z[:9], visits=_Z[:9]), "rows"),
            user_data(layout, (_shop(id=[1] * _N), replace(TOML, "already-aligned", "hash")), "shop", "id"),
            user_data(layout, (_shop(id=[f"x{i}" for i in range(_N)]), replace(TOML, "already-aligned", "hash")), "id"),
            user_data(layout, (_shop(id=[None, *range(_N - 1)]), replace(TOML, "already-aligned", "hash")), "shop", "id"),
            user_data(layout, (replace(TOML, '[parties.shop]\npath = "shop.csv"\nid = "id"', '[parties.shop]\npath = "shop.csv"'),
                         replace(TOML, "already-aligned", "psi")), "parties.shop.id"),
            user_data(layout, write("shop.csv", "id,spent,visits\n"), "shop"),
            user_data(layout, write("shop.csv", "id,spent,visits\n1,2\n"), "shop"),
            user_data(layout, write("shop.csv", "id,spent,spent\n1,2,3\n"), "shop"),
            user_data(layout, write("shop.csv", "\n\n\n"), "shop"),
            user_data(layout, write("shop.csv", 'id,spent,visits\n1,"2,3\n'), "shop"),
            user_data(layout, (parquet("shop.parquet", **{**_SHOP, "spent": [[1.0]] * (_N - 1) + [[1.0, 2.0]]}),
                         replace(TOML, "shop.csv", "shop.parquet")), "shop", "spent"),
            user_data(layout, (write("shop.parquet", b"PAR1" + b"\0" * 30 + b"PAR1"), replace(TOML, "shop.csv", "shop.parquet")),
                "shop"),
            user_data(layout, (parquet("shop.parquet", **{**_SHOP, "spent": np.array(["2020-01-01"] * _N, "M8[D]")}),
                         replace(TOML, "shop.csv", "shop.parquet")), "shop", "spent"),
        ]  # fmt: skip
    npy = replace(TOML, 'path = "shop.csv"\nid = "id"\nfeatures = ["spent", "visits"]', 'path = "shop.npy"')
    for make in (
        lambda: np.empty((_N, 0)),
        lambda: np.zeros((0, 3)),
        lambda: np.zeros(_N),
        lambda: np.zeros((_N, 2, 2)),
        lambda: np.full((_N, 2), np.nan),
        lambda: np.full((_N, 2), 1j),
        lambda: np.array([["a", "b"]] * _N),
        lambda: np.array([[{}, 1]] * _N, dtype=object),
        lambda: np.zeros((_N, 2), "M8[s]"),
        lambda: np.zeros(_N, np.dtype([("a", "f8", (3,))])),
        lambda: np.zeros(_N, np.dtype([("a", "V3")])),
        lambda: np.zeros(()),
        lambda: np.full((_N, 2), 1e300),
    ):
        made.append(user_data("vertical", (npy, array("shop.npy", make)), "shop"))
    header = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }"
    made.append(user_data("vertical", (npy, write("shop.npy", header.ljust(127) + b"\n")), "shop"))
    made.append(user_data("vertical", (npy, write("shop.npy", b"\x93NUMPY\x09\x00")), "shop"))
    made += [
        user_data("vertical", _bank(income=["a"] * _N), "bank", "income"),
        run("mtcd", "num_clients=2 num_tokens=1", "relaxed_protocol", flags=["--data", TOML], base="vertical"),
        run("mtcd", "num_clients=3 num_tokens=1 relaxed_protocol=true", "num_clients", flags=["--data", TOML], base="vertical"),
        run("nebulafl", "", "task.layout", flags=["--data", TOML], base="vertical"),
        run("tablepuppet", "", "task.layout", flags=["--data", TOML], base="vertical"),
        run("glasu", "", "", flags=["--data", TOML], base="vertical"),
        run("pubsub-vfl", "", "task.layout", flags=["--data", TOML], base="horizontal"),
        run("pubsub-vfl", "", "no feature column", flags=["--data", TOML], base="relational"),
        run("pubsub-vfl", "", "", flags=["--data", TOML], base="graph"),
    ]  # fmt: skip
    many = [f"v{i}" for i in range(30000)]
    made.append(
        user_data("vertical", (
            table("bank.csv", id=list(range(30000)), age=many, bad=[0, 1] * 15000),
            table("shop.csv", id=list(range(30000)), spent=[1.0] * 30000, visits=list(range(30000))),
            replace(TOML, 'label = "bad"', 'label = "bad"\ncategorical = ["age"]'),
        ), "bank", "categorical", "'age'")
    )  # fmt: skip
    one_class = [0, 1] * 5 + [0] * 50
    made.append(
        user_data("vertical", (_bank(bad=one_class), _shop()), "validation_fraction", words="validation_fraction=0.05")
    )
    return made


def _rules() -> list[Case]:
    """Return what columns are said to mean and cannot: each names the party, the column and the rule."""
    made = []
    numbers = (
        ('scaling = "standard"\nrange = [0, 1]', "range"), ('scaling = "range"', "range"), ('scaling = "log"', "scaling"),
        ('scaling = "range"\nrange = [1, 0]', "range"), ('scaling = "range"\nrange = [1, 1]', "range"),
        ('scaling = "range"\nrange = [0]', "range"), ('scaling = "range"\nrange = ["a", "b"]', "range"),
        ('scaling = "range"\nrange = [0, inf]', "range"), ('categories = ["a"]', "categories"), ("categories = []", "categories"),
        ('unknown = "refuse"', "unknown"), ('unknown = "bucket"', "unknown"), ("rare = 3", "rare"), ("rare = 1", "rare"),
        ("rare = 0", "rare"), ('format = "%Y"', "format"), ('format = ""', "format"), ('parts = ["month"]', "parts"),
        ('missing = "mode"', "missing"), ('missing = "constant"', "fill"), ("fill = 3", "fill"), ("colour = 3", "colour"),
        ('missing = "constant"\nfill = "much"', "fill"), ('missing = "constant"\nfill = nan', "fill"),
        ('type = "number"', "type"), ("type = 3", "type"), ('type = "datetime"', "spent"),
    )  # fmt: skip
    towns = (
        ('scaling = "none"', "scaling"), ('scaling = "range"\nrange = [0, 1]', "scaling"), ('format = "%Y"', "format"),
        ('parts = ["days"]', "parts"), ('missing = "mean"', "missing"), ('missing = "median"', "missing"),
        ('unknown = "guess"', "unknown"), ('rare = 3\nunknown = "refuse"', "rare"), ('rare = 3\ncategories = ["n"]', "rare"),
        ('categories = ["n", "n"]', "categories"), ('categories = ["n", " "]', "categories"), ('categories = [""]', "categories"),
        ('categories = "n"', "categories"), ("categories = [1]", "categories"), ('missing = "constant"\nfill = " "', "fill"),
        ('categories = ["n"]\nmissing = "constant"\nfill = "x"', "fill"), ("rare = -1", "rare"), ("rare = 1.5", "rare"),
    )  # fmt: skip
    days = (
        ('unknown = "refuse"', "unknown"), ("rare = 3", "rare"), ('categories = ["n"]', "categories"), ("parts = []", "parts"),
        ('parts = ["year"]', "parts"), ("parts = 3", "parts"), ('scaling = "range"\nrange = [0, 1]\nparts = ["hour"]', "scaling"),
        ('missing = "constant"\nfill = "soon"', "fill"), ('format = "%Q"', "town"), ('format = "%d.%m"', "town"),
    )  # fmt: skip
    for column, kind, rules in (
        ("spent", "", numbers), ("town", 'type = "text"\n', towns), ("town", 'type = "categorical"\n', towns),
        ("town", 'type = "datetime"\n', days),
    ):  # fmt: skip
        for rule, named in rules:
            text = f'features = ["visits", "{column}"]\n[parties.shop.columns.{column}]\n{kind}{rule}\n'
            made.append(
                user_data("vertical", replace(TOML, 'features = ["spent", "visits"]', text), "shop", column, named)
            )
    for text, named in (
        ("columns = 3", "columns"), ("[parties.shop.columns]\nspent = 3", "spent"),
        ('[parties.shop.columns]\nnowhere = { missing = "drop" }', "nowhere"),
        ('[parties.shop.columns]\nid = { missing = "drop" }', "id"),
    ):  # fmt: skip
        made.append(
            user_data("vertical", replace(TOML, '["spent", "visits"]', f'["spent", "visits"]\n{text}'), "shop", named)
        )
    for rule, named in (("rare = 2", "rare"), ('unknown = "refuse"', "unknown"), ('missing = "mean"', "missing")):
        made.append(
            user_data(
                "horizontal",
                replace(TOML, "[parties.a]", f"[task.columns.p]\n{rule}\n[parties.a]"),
                "task.columns.p",
                named,
            )
        )
    return made


def _centers(first: str, second: str) -> tuple[Change, ...]:
    return tuple(
        replace(TOML, f'"{name}.csv"', f'"{name}.csv"\ncenter = "{center}"')
        for name, center in (("a", first), ("b", second))
    )


def _horizontal() -> list[Case]:
    rows = {"p": _Z, "q": _Z, "y": [0, 1] * (_N // 2)}
    return [
        user_data("horizontal", replace(TOML, '"binary"', '"ranking"'), "task.type"),
        user_data("horizontal", replace(TOML, '"binary"', '"regression"'), "task"),
        user_data("horizontal", replace(TOML, "[0, 1]", "[0]"), "task.classes"),
        user_data("horizontal", replace(TOML, "[0, 1]", "[0, 0]"), "task.classes"),
        user_data("horizontal", replace(TOML, "[0, 1]", "[0, 1, 2]"), "task.classes"),
        user_data("horizontal", replace(TOML, "[0, 1]", "2"), "task.classes"),
        user_data("horizontal", replace(TOML, "[0, 1]", "[5, 6]"), "a"),
        user_data("horizontal", replace(TOML, 'test = "test.csv"\n', ""), "test"),
        user_data("horizontal", replace(TOML, '"test.csv"', "3"), "test"),
        user_data("horizontal", replace(TOML, '"test.csv"', '"a.csv"'), "task.test"),
        user_data("horizontal", replace(TOML, '"test.csv"', '"./b.csv"'), "task.test"),
        user_data("horizontal", replace(TOML, '"test.csv"', '"nowhere.csv"'), "test"),
        user_data("horizontal", replace(TOML, '"test.csv"', '""'), "test"),
        user_data("horizontal", remove("test.csv"), "test"),
        user_data("horizontal", write("test.csv", "p,q,y\n"), "test"),
        user_data("horizontal", write("test.csv", b"\xff\x00\xfe"), "test"),
        user_data("horizontal", table("test.csv", **{**rows, "y": [7] * _N}), "test"),
        user_data("horizontal", table("test.csv", p=_Z, y=rows["y"]), "test"),
        user_data("horizontal", replace(TOML, '"b.csv"', '"b.csv"\ncenter = "oregon"'), "parties.a.center", "missing"),
        user_data("horizontal", _centers("oregon", "mars"), "parties.b.center", "'mars'", "oregon, virginia"),
        user_data("horizontal", _centers("oregon", "oregon"), "active_per_center", "virginia"),
        user_data("horizontal", _centers("", "oregon"), "parties.a.center", "''"),
        user_data("horizontal", _centers("oregon", "a b"), "parties.b.center", "'a b'"),
        user_data("horizontal", replace(TOML, "[task]", "[task]\nclass_weights = { 7 = 2.0 }"), "task.class_weights", "'7'"),
        user_data("horizontal", replace(TOML, "[task]", "[task]\nclass_weights = { 1 = 0 }"), "task.class_weights"),
        user_data("horizontal", replace(TOML, "[task]", "[task]\nclass_weights = [1, 2]"), "task.class_weights", "[1, 2]"),
        user_data("horizontal", replace(TOML, '"a.csv"', '"a.csv"\nweight = "w"'), "a", "weight", "'w'"),
        user_data("horizontal", replace(TOML, '"a.csv"', '"a.csv"\nweight = "p"'), "a", "features", "'p'"),
        user_data("horizontal", (replace(TOML, '"a.csv"', '"a.csv"\nweight = "w"'), table("a.csv", **{**rows, "w": [-1.0] * _N})),
            "a", "column w", "0 or more"),
        user_data("horizontal", replace(TOML, '"a.csv"', '"a.csv"\nunlabelled = "guess"'), "parties.a.unlabelled", "'guess'"),
        user_data("horizontal", replace(TOML, "[task]", "[task]\nshape = [1, 8]"), "task.shape"),
        user_data("horizontal", replace(TOML, "[task]", '[task]\nshape = "big"'), "task.shape", "'big'"),
        user_data("horizontal", replace(TOML, "[task]", "[task]\nmean = [0.5]"), "task.mean", "shape"),
        user_data("horizontal", replace(TOML, "[task]", "[task]\nshape = [1, 8, 8]"), "a", "2 feature columns", "[1, 8, 8]",
            words="model=linear"),
        user_data("horizontal", replace(TOML, 'label = "y"', 'label = "z"'), "label"),
        user_data("horizontal", replace(TOML, 'label = "y"', 'label = "z"', 2), "a", "'z'"),
        user_data("horizontal", replace(TOML, 'label = "y"\n', ""), "label"),
        user_data("horizontal", replace(TOML, '["p", "q"]', '["p"]'), "features"),
        user_data("horizontal", replace(TOML, '["p", "q"]', '["q", "p"]'), "features"),
        user_data("horizontal", replace(TOML, '["p", "q"]', '["p", "r"]', 2), "a", "'r'"),
        user_data("horizontal", replace(TOML, '["p", "q"]', '["p", "y"]', 2), "features"),
        user_data("horizontal", replace(TOML, '["p", "q"]', "[]", 2), "feature"),
        user_data("horizontal", replace(TOML, '["p", "q"]', '"some"', 2), "features"),
        user_data("horizontal", replace(TOML, '"b.csv"', '"a.csv"'), "parties.b.path"),
        user_data("horizontal", replace(TOML, "[parties.b]", "[parties.a2]\ncategorical = []"), "categorical"),
        user_data("horizontal", table("a.csv", **{**rows, "p": [float("nan"), *_Z[1:]]}), "a", "p"),
        user_data("horizontal", table("a.csv", **{**rows, "p": ["x"] * _N}), "a", "p"),
        user_data("horizontal", table("a.csv", **{**rows, "y": [None, *[1] * (_N - 1)]}), "a", "y"),
        user_data("horizontal", table("a.csv", **{**rows, "y": [0.5] * _N}), "a", "label y: "),
        user_data("horizontal", table("a.csv", **{**rows, "y": ["u"] * _N}), "a", "label y: "),
        user_data("horizontal", write("a.csv", "p,q,y\n"), "a"),
        user_data("horizontal", write("a.csv", "p,q,y\n1,2\n"), "a"),
        user_data("horizontal", write(TOML, "[task]\n"), "parties"),
        user_data("horizontal", write(TOML, '[task]\ntype="binary"\nlayout="horizontal"\n[parties.a]\npath="a.csv"\nlabel="y"\n'),
            "parties"),
        user_data("horizontal", write("x", ""), "num_containers", words="num_containers=3"),
        user_data("horizontal", write("x", ""), "num_validation", words="num_validation=3"),
        user_data("horizontal", write("x", ""), "num_training", words="num_training=3"),
        user_data("horizontal", write("x", ""), "algorithm", words="algorithm=fedhkt"),
        user_data("horizontal", write("x", ""), "dirichlet", words="dirichlet=0.3"),
        user_data("horizontal", write("x", ""), "model", words="model=cnn8"),
        user_data("horizontal", write("x", ""), "model", words="model=resnet18"),
    ]  # fmt: skip


def _sql(new: str) -> Change:
    text = (
        "SELECT o.amount, i.price, c.age\nFROM orders o JOIN items i ON o.item = i.item JOIN cards c ON o.card = c.card"
    )
    return replace(TOML, text, new)


_FROM = "FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON o.card = c.card"


def _relational() -> list[Case]:
    queries = (
        ("", "task.sql"), ("SELECT", "sql"), ("SELECT o.amount, FROM orders o WHERE (", "sql"),
        ("DELETE FROM orders", "DELETE"), ("DROP TABLE orders", ""), (f"SELECT count(*) {_FROM}", "COUNT"),
        (f"SELECT o.amount {_FROM} GROUP BY o.amount", "GROUP BY"), (f"SELECT DISTINCT o.amount {_FROM}", "DISTINCT"),
        (f"SELECT o.amount {_FROM} ORDER BY o.amount", "ORDER BY"), (f"SELECT o.amount {_FROM} LIMIT 3", "LIMIT"),
        (f"SELECT o.amount {_FROM}; DROP TABLE orders", "exactly one"), (f"SELECT o.total {_FROM}", "total"),
        (f"SELECT o.amount, i.kind {_FROM}", "i.kind"), (f"SELECT o.amount, item {_FROM}", "item"),
        (f"SELECT o.amount, i.price {_FROM} WHERE o.item = 99", ""), (f"SELECT x.amount {_FROM}", "x"),
        (f"SELECT o.amount, i.price {_FROM} WHERE {'(' * 300}o.item = 1{')' * 300}", ""),
        (f"SELECT o.amount, i.price {_FROM} WHERE {' OR '.join(['o.item = 1'] * 3000)}", ""),
        (f"SELECT {'-' * 500}o.amount {_FROM}", ""), ("\\u0000", ""), ("SELECT 1", ""), ("SELECT * FROM orders", ""),
        ("SELECT * FROM read_csv('/etc/passwd')", ""), (f"SELECT o.amount, i.price + 1 {_FROM}", ""),
        ("SELECT o.amount FROM orders o, items i", ""), (("SELECT o.amount FROM orders o JOIN items i ON " "o.item > i.item"), ""),
        ("SELECT o.amount FROM orders o JOIN items i ON o.item = i.kind JOIN cards c ON o.card = c.card", "no row joins"),
        ("SELECT o.amount FROM orders o JOIN orders o2 ON o.item = o2.item", ""), (("WITH x AS (SELECT 1) " "SELECT * FROM x"), ""),
        ("SELECT o.amount FROM nowhere o JOIN items i ON o.item = i.item", ""),
        ("SELECT o.amount FROM orders o LEFT JOIN items i ON o.item = i.item JOIN cards c ON o.card = c.card", "LEFT"),
        (f"SELECT o.amount, {', '.join(f'i.x{n}' for n in range(500))} {_FROM}", "x0"),
        ("PRAGMA database_list", ""), ("ATTACH '/etc/passwd'", ""), ("COPY orders TO '/tmp/x'", ""), ("é" * 500, ""),
    )  # fmt: skip
    made = [user_data("relational", _sql(query), *[named] if named else []) for query, named in queries]
    sqlite = replace(TOML, '"cards.csv"', '"cards.sqlite"')
    made += [
        user_data("relational", replace(TOML, '"o.amount"', '"o.total"'), "label"),
        user_data("relational", replace(TOML, '"o.amount"', '"amount.o.x"'), "label"),
        user_data("relational", replace(TOML, '"o.amount"', "3"), "task.label"),
        user_data("relational", replace(TOML, '"o.amount"', '""'), "task.label"),
        user_data("relational", replace(TOML, '"o.amount"', '"item"'), "item"),
        user_data("relational", replace(TOML, '"o.amount"', '"\'); DROP"'), "label"),
        user_data("relational", replace(TOML, "categorical = []", 'categorical = ["i.kinds"]'), "kinds"),
        user_data("relational", replace(TOML, "categorical = []", "categorical = 3"), "task.categorical"),
        user_data("relational", replace(TOML, "categorical = []", 'categorical = ["i.price", "i.price"]'), "task.categorical"),
        user_data("relational", replace(TOML, '"regression"', '"binary"'), "label"),
        user_data("relational", replace(TOML, '"regression"', '"multiclass"\nclasses = 3'), "label"),
        user_data("relational", replace(TOML, '"regression"', '"multiclass"\nclasses = 1000000000000'), "classes"),
        user_data("relational", replace(TOML, '"regression"', '"ranking"'), "task.type"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\nkind = 'oracle'"), "parties.cards.kind"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\nkind = 3"), "parties.cards.kind"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\nkind = 'sqlite'"), "cards"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\nkind = 'duckdb'"), "cards"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\nkind = 'parquet'"), "cards"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\ntable = 'orders'"), "cards"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\ntable = 3"), "parties.cards.table"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.cards]\nsource_table = 3"), "parties.cards.source_table"),
        user_data("relational", replace(TOML, '"cards.csv"', '"cards.xls"'), "parties.cards.kind"),
        user_data("relational", replace(TOML, "[parties.cards]\n", "[parties.cards2]\ntable = 'cards'\n"
                                  'path = "cards.csv"\n[parties.cards]\n'), "parties.cards"),
        user_data("relational", (sqlite, replace(TOML, "[parties.cards]", "[parties.cards]\nsource_table = 'nothing'")), "nothing"),
        user_data("relational", (sqlite, replace(TOML, "[parties.cards]", ("[parties.cards]\nsource_table = 'a\"; " "DROP TABLE x'"))),
            "cards"),
        user_data("relational", (sqlite, cut("cards.sqlite", 50)), "cards"),
        user_data("relational", (sqlite, cut("cards.sqlite", 0)), "cards"),
        user_data("relational", (sqlite, write("cards.sqlite", os.urandom(9000))), "cards"),
        user_data("relational", (sqlite, make_folder("cards.sqlite")), "cards", code=4),
        user_data("relational", (sqlite, loop("cards.sqlite")), "cards"),
        user_data("relational", (replace(TOML, '"cards.csv"', '"cards.duckdb"'), write("cards.duckdb", os.urandom(9000))), "cards"),
        user_data("relational", table("items.csv", item=[1, 2, 3], price=[1.0, None, 2.0]), "price"),
        user_data("relational", table("items.csv", item=[1, 2, 3], price=[1.0, float("inf"), 2.0]), "price"),
        user_data("relational", table("items.csv", item=["a", "b", "c"], price=[1.0, 3.0, 2.0]), "item"),
        user_data("relational", table("items.csv", item=[7, 8, 9], price=[1.0, 3.0, 2.0]), ""),
        user_data("relational", table("items.csv", thing=[1, 2, 3], price=[1.0, 3.0, 2.0]), "item"),
        user_data("relational", table("orders.csv", item=[1], card=[7], amount=[1.0]), ""),
        user_data("relational", table("orders.csv", item=[1] * 40, card=[7] * 40, amount=["x"] * 40), "amount"),
        user_data("relational", table("orders.csv", item=[1] * 40, card=[7] * 40, amount=[None] + [1.0] * 39), "amount"),
        user_data("relational", write("cards.csv", "card,age\n"), "has a header and no row"),
        user_data("relational", replace(TOML, "[parties.cards]", "[parties.orders]"), TOML),
    ]  # fmt: skip
    for address, named in (
        ("postgresql://u@[::1", "cards"), ("postgresql://", "cards"), ("postgresql://u:p@h/d", "password"),
        ("postgresql://h:port/d", "cards"), ("postgresql://h:99999/d", "cards"), ("postgresql://h/d?colour=1", "colour"),
        ("postgresql://h", "cards"), ("postgres://u@127.0.0.1:1/d", "127.0.0.1:1"), ("env:NO_SUCH_VARIABLE", "NO_SUCH"),
        ("env:", "cards"), ("env:A=B", "cards"), ("postgresql://u@127.0.0.1:1/d?sslmode=perhaps", "cards"),
        ("postgresql://u@127.0.0.1:1/d?connect_timeout=x", "cards"), ("mysql://h/d", "cards"),
    ):  # fmt: skip
        made.append(user_data("relational", replace(TOML, '"cards.csv"', f'"{address}"'), named))
    for value in ("", "nonsense", "postgresql://u@[::1", "mysql://h/d", "postgresql://u:secret@127.0.0.1:1/d"):
        case = user_data("relational", replace(TOML, '"cards.csv"', '"env:CARDS"'), "cards", environ={"CARDS": value})
        made.append(case)
    made += [
        user_data("relational", write("x", ""), "server_in", words="server_in=shops"),
        user_data("relational", write("x", ""), "num_partitions", words="num_partitions=2"),
        user_data("relational", write("x", ""), "task", words="task=binary"),
        user_data("relational", write("x", ""), "test_fraction", words="test_fraction=0.9999"),
        user_data("relational", write("x", ""), "label_range", words="label_dp=0.5"),
    ]
    return made


def _graph() -> list[Case]:
    n = 12
    masks = np.repeat(np.eye(3, dtype=bool), 4, axis=0)
    ints = {"train": masks[:, 0].astype(int), "validation": masks[:, 1].astype(int), "test": masks[:, 2].astype(int)}
    nodes: list[tuple[dict[str, Any], str]] = [
        (ints, "mask"), ({"labels": None}, "labels"), ({"train": None}, "train"),
        ({"labels": np.full(n, 10**12)}, "train"),
        ({"labels": np.full(n, -1)}, "labels"), ({"labels": np.linspace(0, 1, n)}, "labels"),
        ({"labels": np.array(["a"] * n)}, "labels"), ({"labels": np.zeros((n, 2), int)}, "labels"),
        ({"labels": np.arange(3)}, "3 labels"), ({"labels": np.array([], int)}, "labels"),
        ({"labels": np.zeros(n, int)}, "train"), ({"labels": np.full(n, 2**63, "u8")}, "train"),
        ({"train": np.zeros(n, bool)}, "train"), ({"train": masks[:, 1]}, "split"), ({"train": np.ones(5, bool)}, "train"),
        ({"train": np.array([0.5])}, "train"), ({"train": np.array(["a"])}, "train"), ({"test": np.ones((n, 2), bool)}, "test"),
        ({"train": np.array([99]), "validation": np.array([1]), "test": np.array([2])}, "train"),
        ({"train": np.array([-1]), "validation": np.array([1]), "test": np.array([2])}, "train"),
        ({"train": np.array([3, 3]), "validation": np.array([1]), "test": np.array([2])}, "train"),
        ({"train": np.arange(8), "validation": np.array([1]), "test": np.array([9])}, "validation"),
        ({"train": np.array([10**18]), "validation": np.array([1]), "test": np.array([2])}, "train"),
    ]  # fmt: skip
    block: list[tuple[dict[str, Any], str]] = [
        ({"edges": None}, "edges"), ({"features": None}, "features"), ({"edges": np.array([0, 1])}, "edges"),
        ({"edges": np.array([[0, 99], [1, 2]])}, "edges"), ({"edges": np.array([[0, -1], [1, 2]])}, "edges"),
        ({"edges": np.array([[0.5], [1.0]])}, "edges"), ({"edges": np.array([["a"], ["b"]])}, "edges"),
        ({"edges": np.zeros((3, 2), int)}, "edges"), ({"edges": np.array([[10**18], [1]])}, "edges"),
        ({"edges": np.zeros((2, 2, 2), int)}, "edges"), ({"edges": np.zeros((), int)}, "edges"),
        ({"features": np.ones((5, 3))}, "features"), ({"features": np.ones((n, 0))}, "features"),
        ({"features": np.ones(n)}, "features"), ({"features": np.ones((n, 2, 2))}, "features"),
        ({"features": np.full((n, 2), np.nan)}, "features"), ({"features": np.full((n, 2), np.inf)}, "features"),
        ({"features": np.full((n, 2), 1e300)}, "features"), ({"features": np.array([["a", "b"]] * n)}, "features"),
        ({"features": np.zeros((n, 2), complex)}, "features"), ({"features": np.zeros((), float)}, "features"),
    ]  # fmt: skip
    made = [user_data("graph", arrays("nodes.npz", **changed), named) for changed, named in nodes]
    made += [user_data("graph", arrays("bank.npz", **changed), "bank", named) for changed, named in block]
    made += [
        user_data("graph", replace(TOML, '"nodes.npz"', '"nowhere.npz"'), "nowhere.npz"),
        user_data("graph", replace(TOML, '"nodes.npz"', "3"), "task.nodes"),
        user_data("graph", replace(TOML, '"nodes.npz"', '""'), "task.nodes"),
        user_data("graph", replace(TOML, '"nodes.npz"', '"x\\u0000"'), "task.nodes"),
        user_data("graph", replace(TOML, 'nodes = "nodes.npz"\n', ""), "task.nodes"),
        user_data("graph", replace(TOML, '"graph"', '"vertical"'), "task", "nodes"),
        user_data("graph", replace(TOML, '"shop.npz"', '"bank.npz"'), "parties.shop.file"),
        user_data("graph", replace(TOML, '"shop.npz"', '"nodes.npz"'), "shop"),
        user_data("graph", make_folder("nodes.npz"), "nodes"),
        user_data("graph", loop("nodes.npz"), "nodes"),
        user_data("graph", cut("nodes.npz", 100), "nodes"),
        user_data("graph", write("nodes.npz", b""), "nodes"),
        user_data("graph", array("shop.npy", lambda: np.zeros(3)), "num_clients", words="num_clients=3"),
        user_data("graph", (array("shop.npy", lambda: np.zeros(3)), replace(TOML, "shop.npz", "shop.npy")), "shop"),
        user_data("graph", arrays("bank.npz", edges=np.array([[{}]], dtype=object)), "bank"),
    ]
    return made


def _market() -> list[Case]:
    words = f"{small('nebulafl')} catalogue=catalogue.toml network=network.toml"

    def market(change: Change, *says: str) -> Case:
        return run("nebulafl", words, *says, flags=["--data", "digits"], base="market", change=change)

    catalogue, network = "catalogue.toml", "network.toml"
    made = []
    for name, kind in ((catalogue, "catalogue"), (network, "network")):
        made += [market(write(name, text), kind) for text in ("", "not [", b"\xff\xfe\x00", b"\x7fELF\x02\x01\x01\0\0")]
        made += [market(make_folder(name), kind), market(loop(name), kind), market(remove(name), kind)]
        made.append(market(replace(name, "", "colour = 1\n"), kind, "colour"))
    made += [
        market(replace(catalogue, "price = 0.5", f"price = {value}"), "types.a.price")
        for value in ("-1", '"x"', "nan", "inf", "true", "[]")
    ]
    made += [
        market(replace(catalogue, "cnn8 = 10", f"cnn8 = {value}"), "types.a.throughput.cnn8")
        for value in ("0", "-1", '"x"', "nan", "inf", "true")
    ]
    made += [
        market(replace(catalogue, "a = 2", f"a = {v}"), "centers.x") for v in ("0", "-1", "1.5", '"x"', "true", "[]")
    ]
    made += [
        market(replace(catalogue, "spread = 0.1", f"spread = {value}"), "spread")
        for value in ("-1", "nan", '"x"', "inf")
    ]
    made += [
        market(replace(catalogue, "price = 0.5\n", ""), "types.a.price"),
        market(replace(catalogue, "throughput = { cnn8 = 10, linear = 5 }", ""), "types.a", "throughput"),
        market(replace(catalogue, "a = 2", "h900 = 2"), "centers.x.h900"),
        market(replace(catalogue, "cnn8 = 10", "linear2 = 10"), "cnn8"),
        market(write(catalogue, "types = 3\ncenters = 4"), "types"),
        market(replace(catalogue, "[types.a]\n", "[types.a]\nweight = 3\n"), "types.a", "weight"),
        *(market(replace(catalogue, "[centers.y]", f"[centers.{name}]"), "centers") for name in
          ('"a/b"', '"my center"', '".."', '""', "driver", "auditor", "exchange", '"\\u0000"')),
        *(market(replace(network, "latency_ms = 20", f"latency_ms = {value}"), "link 1.latency_ms") for value in
          ("0", "-1", "nan", "inf", '"x"', "[]")),
        *(market(replace(network, "bandwidth_mbit = 80", f"bandwidth_mbit = {value}"), "link 1.bandwidth_mbit") for value in
          ("0", "-1", "nan", "inf", '"x"')),
        *(market(replace(network, "egress_per_gb = 0.05", f"egress_per_gb = {value}"), "link 1.egress_per_gb") for value in
          ("-1", "nan", '"x"')),
        market(replace(network, "latency_ms = 20\n", ""), "link 1.latency_ms"),
        market(replace(network, '["x", "y"]', '["x", "z"]'), "'y'"),
        market(replace(network, '["x", "y"]', '["x", "x"]'), "link 1.between"),
        market(replace(network, '["x", "y"]', '["x"]'), "link 1.between"),
        market(replace(network, '["x", "y"]', "3"), "link 1.between"),
        market(replace(network, '["x", "y"]', "[1, 2]"), "link 1.between"),
        market(replace(network, "[[links]]", 'hub = "z"\n[[links]]'), "hub"),
        market(replace(network, "[[links]]", "hub = 3\n[[links]]"), "hub"),
        market(replace(network, "[[links]]", "[links]"), "links"),
        market(write(network, "links = []"), "links"),
        *(market(replace(network, "", f"capacity.x.egress_mbit = {value}\n"), "capacity.x.egress_mbit") for value in
          ("0", "-1", "nan", '"x"')),
        *(market(replace(network, "", f"{entry}\n"), "capacity") for entry in
          ("capacity = 3", "capacity.z.egress_mbit = 1", "capacity.x = 1", "capacity.x = {}", "capacity.x.mbit = 1")),
        run("nebulafl", f"{words} stop_at_target=true", "stop_at_target", flags=["--data", "digits"], base="market"),
        market(write(network, "links = [1]"), "link 1"),
        run("nebulafl", f"{words} outages=x/0@1-2,y/0@1-2", "outages", flags=["--data", "digits"], base="market"),
        run("nebulafl", f"{words} outages=z/0@1-2", "outages", "z", flags=["--data", "digits"], base="market"),
        run("nebulafl", f"{words} model=vgg16", "model", "vgg16", flags=["--data", "digits"], base="market"),
    ]  # fmt: skip
    topology = f"{small('mtcd', 'num_clients')} num_clients=3"
    for text in ("0 1 2 3 4\n", "0 9\n", "a b\n", "", "0 0\n", b"\xff\xfe\x00", "0 1\n", "-1 0\n", "\0"):
        change = write("graph.edgelist", text)
        made.append(run("mtcd", f"{topology} topology=graph.edgelist algorithm=stcd", "topology", change=change))
    for suffix in ("gml", "graphml", "json", "edgelist", "txt"):
        change = write(f"graph.{suffix}", b"\x00\xff not a graph [")
        made.append(run("mtcd", f"{topology} topology=graph.{suffix}", "topology", change=change))
    made.append(run("mtcd", f"{topology} topology=graph.edgelist", "topology", change=loop("graph.edgelist")))
    made.append(run("mtcd", f"{topology} topology=graph.edgelist", "topology", change=make_folder("graph.edgelist")))
    return made


CASES = [*_descriptions(), *_vertical(), *_rules(), *_horizontal(), *_relational(), *_graph(), *_market()]
