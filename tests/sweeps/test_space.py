import json

import pytest

from fedactors.errors import BadInput
from fedactors.sweeps import read_settings, settings_of, split_list


def test_lists_make_a_product_and_the_first_key_changes_slowest():
    assert settings_of(["a=1,2", "b=x,y", "c=3"]) == [
        {"a": "1", "b": "x", "c": "3"},
        {"a": "1", "b": "y", "c": "3"},
        {"a": "2", "b": "x", "c": "3"},
        {"a": "2", "b": "y", "c": "3"},
    ]
    assert settings_of([]) == [{}]


def test_a_value_given_twice_is_one_setting():
    assert settings_of(["a=1,2,1"]) == [{"a": "1"}, {"a": "2"}]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2", ["1", "2"]),
        ("[8,16]", ["[8,16]"]),
        ("[8,16],[32]", ["[8,16]", "[32]"]),
        ('{"a": [1,2]},none', ['{"a": [1,2]}', "none"]),
        ("(1,2),3", ["(1,2)", "3"]),
    ],
)
def test_brackets_keep_a_value_together(text, parts):
    assert split_list(text) == parts


def test_draws_are_the_same_for_the_same_seed_and_begin_with_fewer():
    words = ["rate=loguniform(1e-4,1e-1)", "size=integer(1,9)"]
    five = settings_of(words, draws=5, draw_seed=3)
    assert len(five) == 5
    assert settings_of(words, draws=3, draw_seed=3) == five[:3]
    assert settings_of(words, draws=5, draw_seed=4) != five
    # a key more does not change what the others draw
    more = settings_of([*words, "kind=choice(a,b)"], draws=5, draw_seed=3)
    assert [{key: setting[key] for key in ("rate", "size")} for setting in more] == five
    assert {setting["kind"] for setting in more} == {"a", "b"}


def test_draws_lie_where_they_should():
    drawn = settings_of(["a=loguniform(1e-4,1e-1)", "b=uniform(-1,1)", "c=integer(2,3)"], draws=400)
    assert all(1e-4 <= setting["a"] <= 1e-1 and -1 <= setting["b"] <= 1 for setting in drawn)
    assert {setting["c"] for setting in drawn} == {2, 3}
    # half of the draws lie below the geometric mean of the ends: +-5 standard deviations of 400 draws
    assert abs(sum(setting["a"] < 10**-2.5 for setting in drawn) - 200) < 50


def test_each_draw_is_combined_with_each_point_of_the_grid():
    found = settings_of(["a=1,2", "b=uniform(0,1)"], draws=3)
    assert len(found) == 6
    assert [setting["b"] for setting in found[:3]] == [setting["b"] for setting in found[3:]]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["a=uniform(0,1)"], {}, "a: a distribution needs --draws"),
        (["a=1"], {"draws": 2}, "--draws: no key has a distribution"),
        (["a=normal(0,1)"], {"draws": 2}, r"a: 'normal\(0,1\)' is not allowed: uniform, loguniform, integer or choice"),
        (["a=loguniform(0,1)"], {"draws": 2}, "loguniform needs 0 < LOW < HIGH"),
        (["a=uniform(2,1)"], {"draws": 2}, "uniform needs LOW < HIGH"),
        (["a=uniform(1)"], {"draws": 2}, r"uniform\(LOW,HIGH\)"),
        (["a"], {}, "'a' is not of the form key=value"),
        (["a=1"], {"listed": [{"a": 2}]}, "a: given both as a word and in the file"),
    ],
)
def test_what_is_not_allowed_is_one_line(words, options, message):
    with pytest.raises(BadInput, match=message):
        settings_of(words, **options)


def test_a_list_of_settings_is_read_and_combined(tmp_path):
    (tmp_path / "a.toml").write_text("[[settings]]\nrate = 0.1\n[[settings]]\nrate = 0.2\nlayers = [1, 2]\n")
    (tmp_path / "a.json").write_text(json.dumps([{"rate": 0.1}, {"rate": 0.2, "layers": [1, 2]}]))
    listed = read_settings(str(tmp_path / "a.toml"))
    assert listed == read_settings(str(tmp_path / "a.json")) == [{"rate": 0.1}, {"rate": 0.2, "layers": [1, 2]}]
    assert settings_of(["b=1,2"], listed=listed)[1] == {"rate": 0.1, "b": "2"}


@pytest.mark.parametrize(("name", "text"), [("a.toml", "rate = 1"), ("a.json", "{}"), ("a.json", "["), ("a.toml", "=")])
def test_a_file_without_settings_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match="--settings: "):
        read_settings(str(tmp_path / name))
    with pytest.raises(BadInput, match="cannot be read"):
        read_settings(str(tmp_path / "none.json"))
