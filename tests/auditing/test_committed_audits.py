"""The committed rows of audits and attacks say what the pages about them say: no claim refuted, on three data sets."""

from __future__ import annotations

import math
import shlex
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from fedactors.config import as_dict, build_given
from fedactors.protocols.mtcd.plugin import PROTOCOL as MTCD
from fedactors.runs.table import RunRow, read_table
from scenarios.results import pooled

pytestmark = pytest.mark.docs

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLE = RESULTS.parent / "explanation" / "privacy.md"
CLAIMS = {
    "pubsub_vfl_privacy/audits": [("claimed_mu", "replay_mu")],
    "privacy_audits/mtcd": [("claimed_mu", "replay_mu")],
    "privacy_audits/tablepuppet": [
        ("tuple_mu", "tuple_replay_mu"),
        ("tuple_epsilon", "tuple_replay_epsilon"),
        ("label_mu", "label_replay_mu"),
    ],
    "privacy_audits/glasu": [("shown_mu", "replay_mu")],
}
WITHIN = [
    ("pubsub_vfl_privacy/attacks", "frozen-mu-2", "membership"),
    ("pubsub_vfl_privacy/attacks", "private-mu-2", "membership"),
    ("privacy_audits/glasu", "noise", "links"),
    ("privacy_audits/glasu", "sums-and-noise", "links"),
    *((f"privacy_audits/{name}-attacks", "sums", "source") for name in ("horizontal", "nebulafl")),
    *((f"privacy_audits/{name}-attacks", "sums", "classes_held") for name in ("horizontal", "nebulafl")),
    *(("privacy_audits/horizontal-attacks", "clients", attack) for attack in ("source", "classes_held")),
    *(
        (f"privacy_audits/{n}-attacks", m, "membership")
        for n in ("horizontal", "nebulafl")
        for m in ("clients", "rows")
    ),
    ("privacy_audits/mtcd-attacks", "noise", "membership"),
]
"""A figure whose interval holds chance."""
NOT_ABOVE = [
    ("privacy_audits/mtcd-attacks", "noise", "inversion_by_decoder"),
    *(
        ("pubsub_vfl_privacy/attacks", f"{mode}-mu-2", f"inversion_by_{how}")
        for mode in ("frozen", "private")
        for how in ("decoder", "optimisation", "nearest_neighbour")
    ),
    *(
        ("privacy_audits/reconstruction", mode, how)
        for mode in ("noise", "sums-and-noise")
        for how in ("known_rows", "theta_given")
    ),
]
"""A share of hits that guessing reaches as well."""


def rows(key: str, mode: str = "") -> list[RunRow]:
    file, _, study = key.partition("/")
    found = [row for row in read_table(RESULTS / f"{file}.parquet") if row.study == study]
    return [row for row in found if mode in ("", row.name.partition("/")[2])]


def number(value: Any) -> float | None:
    return None if value == "none" else math.inf if value == "inf" else float(value)


@pytest.mark.parametrize("key", CLAIMS)
def test_no_claim_is_refuted_and_each_stands_on_three_data_sets(key: str) -> None:
    sets: dict[str, set[str]] = {}
    for row in rows(key):
        assert row.value("refuted") in ("no", None), row.name
        for claim, moved in CLAIMS[key]:
            stated, found = number(row.value(claim)), number(row.value(moved))
            if stated is None or math.isinf(stated):
                continue
            assert found is not None
            assert found <= stated * (1 + 1e-5), (row.name, claim)
            data, _, mode = row.name.partition("/")
            if claim == CLAIMS[key][0][0]:
                sets.setdefault(mode, set()).add(data)
    assert sets
    few = {mode: names for mode, names in sets.items() if len(names) < 3}
    assert set(few) <= {"sums-and-noise"}  # GLASU, which claims nothing


def shown(key: str, mode: str, attack: str) -> list[tuple[float, float, float, float]]:
    """Return what was found on each data set, all seeds together, its interval and its chance."""
    by_data: dict[str, list[str]] = {}
    for row in rows(key, mode):
        by_data.setdefault(row.name, []).append(str(row.value(attack)))
    assert by_data
    return [pooled(texts) for texts in by_data.values()]


@pytest.mark.parametrize(("key", "mode", "attack"), WITHIN)
def test_with_noise_a_ranking_is_within_its_interval_of_chance(key: str, mode: str, attack: str) -> None:
    for _, low, high, chance in shown(key, mode, attack):
        assert low <= chance <= high


@pytest.mark.parametrize(("key", "mode", "attack"), NOT_ABOVE)
def test_with_noise_no_more_is_found_than_by_guessing(key: str, mode: str, attack: str) -> None:
    for found, low, _, chance in shown(key, mode, attack):
        assert low <= chance or found <= chance


def test_exchanged_labels_are_found_by_no_more_than_the_page_says() -> None:
    names = [f"labels_by_gradient_{how}" for how in ("norm", "direction", "clusters")]
    found = [
        abs(one[0] - 0.5) for name in names for one in shown("pubsub_vfl_privacy/attacks", "label-epsilon-1", name)
    ]
    assert 0.2 < max(found) < 0.25


@pytest.mark.parametrize("attack", ["source", "classes_held"])
@pytest.mark.parametrize("name", ["horizontal", "nebulafl"])
def test_open_models_show_whose_rows_and_which_classes_made_them(name: str, attack: str) -> None:
    found = shown(f"privacy_audits/{name}-attacks", "off", attack)
    assert len(found) == 3
    assert all(low > chance for _, low, _, chance in found)


def test_sums_do_not_protect_columns_that_go_together_and_the_page_says_so() -> None:
    found = shown("privacy_audits/mtcd-attacks", "sums", "inversion_by_decoder")
    assert any(low > chance for _, low, _, chance in found)


def test_sums_alone_do_not_protect_rows_from_who_knows_some_and_the_page_says_so() -> None:
    key = "privacy_audits/reconstruction"
    assert all(low > chance for _, low, _, chance in shown(key, "sums", "known_rows"))
    told = [[row.value("differences") for row in rows(key, mode)] for mode in ("sums", "sums-and-noise")]
    opened, noised = ([str(text) for text in texts if text != "none"] for texts in told)
    assert pooled(opened)[0] > 0.99
    _, low, _, chance = pooled(noised)
    assert low <= chance
    for seed in ("known rows **.05, .19 and .70", "all others beside a known one, exactly**"):
        assert seed in TABLE.read_text()


def test_everything_together_tells_no_more_than_its_claim_allows() -> None:
    found = rows("privacy_audits/together")
    assert {row.name.partition("/")[0] for row in found} == {"pubsub-vfl", "mtcd", "tablepuppet", "glasu"}
    for row in found:
        assert row.value("refuted") == "no", row.name
        assert row.value("bare") == "nothing", row.name
    claimed = [row for row in found if row.value("allowed") != "none"]
    assert len({row.name for row in claimed}) == 6
    for name in {row.name for row in claimed}:
        local = [row for row in claimed if row.name == name]
        for column in ("found", "releases"):
            assert pooled([str(row.value(column)) for row in local])[1] <= float(local[0].value("allowed"))  # type: ignore[arg-type]


def test_without_protection_attacks_succeed() -> None:
    for key, mode, attack in (
        ("pubsub_vfl_privacy/attacks", "off", "labels_by_gradient_direction"),
        ("pubsub_vfl_privacy/attacks", "off", "inversion_by_nearest_neighbour"),
        ("privacy_audits/glasu", "off", "links"),
        ("privacy_audits/reconstruction", "open", "known_rows"),
        ("privacy_audits/reconstruction", "open", "theta_given"),
    ):
        for found, low, _, chance in shown(key, mode, attack):
            assert low > chance
            assert found > 0.8


def as_written(key: str, mode: str, attack: str, column: int, digits: str = "0.01") -> str:
    """Return what was found (column 0) or its chance (3) on each data set, as the table of promises writes them."""
    texts = [
        str(Decimal(f"{one[column]:.4f}").quantize(Decimal(digits), ROUND_HALF_UP)) for one in shown(key, mode, attack)
    ]
    return ", ".join(text.removeprefix("0") for text in texts)


LABELS = "pubsub_vfl_privacy/attacks"


@pytest.mark.parametrize(
    ("start", "key", "mode", "attack", "digits"),
    [
        *(
            (f"PubSub-VFL{name}", LABELS, mode, "labels_by_gradient_norm", "0.01")
            for name, mode in (
                (" `privacy_mu`", "paper-mu-1"),
                (", bottom `frozen`", "frozen-mu-2"),
                (", bottom `private`", "private-mu-2"),
            )
        ),
        ("PubSub-VFL, bottom `frozen`", LABELS, "frozen-mu-2", "labels_by_gradient_direction", "0.01"),
        ("PubSub-VFL `label_epsilon`", LABELS, "label-epsilon-1", "inversion_by_decoder", "0.01"),
        ("MTCD `noise`", "privacy_audits/mtcd-attacks", "off", "inversion_by_decoder", "0.01"),
        ("MTCD `noise`", "privacy_audits/mtcd-attacks", "noise", "inversion_by_decoder", "0.01"),
        ("MTCD, horizontal", "privacy_audits/mtcd-attacks", "sums", "inversion_by_decoder", "0.01"),
        ("GLASU `secure_aggregation`", "privacy_audits/glasu", "sums", "links", "0.001"),
    ],
)
def test_the_table_of_promises_names_what_attacks_find(
    start: str, key: str, mode: str, attack: str, digits: str
) -> None:
    (line,) = [line for line in TABLE.read_text().splitlines() if line.startswith(f"| {start}")]
    assert as_written(key, mode, attack, 0, digits) in line
    if "inversion" in attack:
        assert f"chance {as_written(key, mode, attack, 3)}" in line


def test_the_command_for_a_folder_is_of_the_row_that_the_page_names() -> None:
    (command,) = [
        line for line in (RESULTS / "privacy.md").read_text().splitlines() if line.startswith("fedactors run")
    ]
    words = shlex.split(command)
    made = as_dict(build_given(MTCD.Config, [word for word in words if "=" in word]))
    (row,) = [
        row for row in rows("privacy_audits/mtcd-attacks", "noise") if (row.data, row.seed) == ("breast-cancer", 0)
    ]
    assert words[2:7] == ["mtcd", "--data", row.data, "--seed", str(row.seed)]
    # of generated data, which a table is not; of arithmetic, which `auto` chooses as the row says
    decides_nothing = {"num_samples", "num_features", "local_arithmetic"}
    assert all(made[name] == value for name, value in row.config.items() if name not in decides_nothing)
