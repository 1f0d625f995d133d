"""Exported parts of a graph network, composed: what they say of nodes is what prediction says."""

import json

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.errors import BadInput
from fedactors.protocols.glasu import serving
from fedactors.protocols.glasu.data import load_data, read_blocks
from fedactors.serving.parts import write_part
from tests.protocols.glasu.federation import DATA, settings, simulate
from tests.serving.predicting import predicted

USER_MODEL = "tests.learning.user_networks:sage"
VARIANTS = [
    {"backbone": "gcnii"},
    {"backbone": "gcn", "special_case": "zhou"},
    {"backbone": "gat", "aggregation": "concatenation", "float64": "true"},
    {"user_layer": USER_MODEL},
    {"clip_norm": "0.5", "scale_features": "false"},
    {"special_case": "standalone"},
]


def trained(words, folder):
    """Return what prediction says, the parts as written and read again, and what the clients hold."""
    config = settings(num_clients="3", num_rounds="2", evaluate_every="1", **words)
    _, memory = simulate(config)
    source, states = load_data(config, DATA, 0), memory.snapshots[-1].actors
    said, _ = predicted(serving.predict, config, source, states, folder)
    for name in source.parties:
        write_part(serving.part(config, name, states), folder / name)
    parts = [load_part(folder / name, allow_import=[USER_MODEL]) for name in source.parties]
    return said, parts, read_blocks([source.part(name) for name in source.parties])


@pytest.mark.slow
@pytest.mark.parametrize("words", VARIANTS, ids=lambda words: " ".join(words.values()))
def test_the_parts_together_say_what_prediction_says(words, tmp_path):
    said, parts, blocks = trained(words, tmp_path)
    networks = [part.network for part in parts]
    inputs = []
    for block in blocks.values():
        rows = np.repeat(np.arange(len(block.indptr) - 1), np.diff(block.indptr))
        inputs.append((torch.from_numpy(block.features.copy()), torch.from_numpy(np.stack([rows, block.indices]))))
    if words.get("special_case") == "standalone":
        networks, inputs = networks[:1], inputs[:1]
    h = None
    with torch.no_grad():
        for segment in range(networks[0].num_segments):
            made = [network(segment, *local, h) for network, local in zip(networks, inputs, strict=True)]
            h = networks[0].aggregate(made)
        logits = sum(network.classify(h) for network in networks)
        found = torch.softmax(logits.double(), dim=1)
    for number, share in enumerate(found.T):
        np.testing.assert_allclose(share, said[f"probability_{number}"], atol=1e-6)
    assert np.ptp(said["probability_0"]) > 1e-3


@pytest.mark.slow
def test_a_part_is_not_believed_unread(tmp_path):
    _, parts, _ = trained({"user_layer": USER_MODEL}, tmp_path)
    with pytest.raises(BadInput, match=rf"names code, {USER_MODEL}"):
        load_part(tmp_path / "client-0")
    with pytest.raises(BadInput, match=r"below_NW: None is not allowed for segment 1"):
        parts[0].network(1, torch.zeros(2, 9), torch.zeros(2, 0))
    path = tmp_path / "client-0" / "part.json"
    facts = json.loads(path.read_text())
    network = facts["settings"]["network"]
    for change in (
        {"settings": {}},
        {"code": []},
        {"settings": facts["settings"] | {"network": network | {"num_layers": 10**9}}},
        {"settings": facts["settings"] | {"network": network | {"hidden_size": 3}}},
        {"settings": facts["settings"] | {"network": network | {"hidden_size": "much"}}},
        {"settings": facts["settings"] | {"feature_factor": None}},
    ):
        path.write_text(json.dumps(facts | change))
        with pytest.raises(BadInput, match=r"^the part of client-0 is damaged: "):
            _ = load_part(tmp_path / "client-0", allow_import=[USER_MODEL]).network
    path.write_text(json.dumps(facts | {"protocol": "mtcd"}))
    with pytest.raises(BadInput, match="client-0 has no network"):
        _ = load_part(tmp_path / "client-0", allow_import=[USER_MODEL]).network
