import dataclasses

import pytest

from fedactors.errors import BadInput
from fedactors.plugins import Headline, LazyProtocol, Protocol, canonical, check_contract, discover, find_protocol
from tests import tiny
from tests.tiny import install_plugin

LAZY = LazyProtocol(
    name="lazy",
    summary="",
    partition="vertical",
    default_data="breast-cancer",
    headline=Headline(name="score"),
    config_at="tests.tiny:TinyConfig",
    run_at="tests.tiny:run",
    predict_at="tests.tiny:predict",
)


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    points = {
        "tiny_one": "tests.tiny:PROTOCOL",
        "broken": "tests.no_such_module:PROTOCOL",
        "half": "tests.tiny:TinyConfig",
    }
    install_plugin(tmp_path, **points)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("plugins")
def test_installed_plugin_is_found_under_both_spellings():
    assert find_protocol("tiny-one") is tiny.PROTOCOL
    assert find_protocol("tiny_one") is tiny.PROTOCOL
    assert canonical(" PubSub_VFL ") == "pubsub-vfl"


@pytest.mark.usefixtures("plugins")
def test_broken_plugin_is_named_and_hides_no_other():
    found = {entry.name: entry for entry in discover()}
    assert found["tiny-one"].protocol is tiny.PROTOCOL
    assert found["tiny-one"].package == "tiny-plugin"
    assert "'tests.no_such_module:PROTOCOL' is broken: ModuleNotFoundError" in found["broken"].error
    assert "lacks" in found["half"].error
    with pytest.raises(BadInput, match="protocol broken: its plugin"):
        find_protocol("broken")


@pytest.mark.usefixtures("plugins")
def test_unknown_name_suggests_the_nearest():
    with pytest.raises(BadInput, match="unknown protocol 'tinyone'; did you mean tiny-one"):
        find_protocol("tinyone")


def test_contract_names_what_is_missing_or_not_allowed():
    with pytest.raises(BadInput, match=r"x lacks .*headline"):
        check_contract(object(), "x")
    with pytest.raises(BadInput, match="x has party_loss"):
        check_contract(dataclasses.replace(LAZY, party_loss=frozenset({"pray"})), "x")
    with pytest.raises(BadInput, match="default 'restart'"):
        check_contract(dataclasses.replace(LAZY, default_party_loss="restart"), "x")


def test_lazy_protocol_imports_at_first_use():
    protocol: Protocol = LAZY
    check_contract(protocol, "lazy")
    assert protocol.Config is tiny.TinyConfig
    assert protocol.run is tiny.run
    assert protocol.predict is tiny.predict
    assert protocol.plan is None
    assert protocol.messages is None


def test_parts_follow_from_the_files_of_the_package():
    pytest.importorskip("pyarrow")  # the parts of a protocol read data
    facts = {
        field.name: getattr(LAZY, field.name) for field in dataclasses.fields(LAZY) if not field.name.endswith("_at")
    }
    protocol = LazyProtocol(**{**facts, "package": "fedactors.protocols.mtcd"})
    assert protocol.Config.__name__ == "MtcdConfig"
    assert protocol.run.__module__ == "fedactors.protocols.mtcd.run"
    assert protocol.messages.__name__ == "fedactors.protocols.mtcd.messages"
    assert (protocol.measure, protocol.load_new) == (None, None)  # no such file, no such attribute
    assert protocol.plan is not None
    assert dataclasses.replace(protocol, plan_at="").plan is None
    assert dataclasses.replace(protocol, plan_at="tests.tiny:predict").plan is tiny.predict


def test_contract_check_does_not_import_the_heavy_parts():
    check_contract(dataclasses.replace(LAZY, config_at="no.such:Config", run_at="no.such:run"), "lazy")
