"""Settings that own files make meaningless are refused, not ignored."""

import pytest

from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.launch import load_data
from fedactors.plugins import find_protocol


def test_settings_that_cannot_act_on_user_files_are_refused(tmp_path):
    rows = "\n".join(f"{row},{row % 5},{row % 2}" for row in range(20))
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(f"id,x,y\n{rows}\n")
    both = '[parties.a]\npath = "a.csv"\n{}[parties.b]\npath = "b.csv"\n{}'
    vertical = tmp_path / "vertical.toml"
    vertical.write_text(
        '[task]\ntype = "binary"\nalignment = "hash"\n' + both.format('id = "id"\nlabel = "y"\n', 'id = "id"\n')
    )
    split = tmp_path / "split.toml"
    split.write_text(vertical.read_text().replace('label = "y"', 'label = "y"\nsplit = "part"'))
    horizontal = tmp_path / "horizontal.toml"
    label = 'label = "y"\nfeatures = ["x"]\n'
    horizontal.write_text(
        '[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "c.csv"\n' + both.format(label, label)
    )
    nodes = tmp_path / "graph.toml"
    nodes.write_text(
        '[task]\ntype = "binary"\nlayout = "graph-tables"\n'
        + both.format('id = "id"\nedges = "ea.csv"\nlabel = "y"\n', 'id = "id"\nedges = "eb.csv"\n')
    )
    mtcd = {"relaxed_protocol": True, "num_clients": 2, "num_tokens": 1}
    cloud = {"num_containers": 2, "num_centers": 2, "active_per_center": 1}
    for protocol, path, given, told in (
        ("pubsub-vfl", vertical, {"alignment": "psi"}, "alignment: 'psi' .* task.alignment says it"),
        ("pubsub-vfl", vertical, {"feature_split": (1, 1)}, "feature_split: .* each party has the columns of its file"),
        ("pubsub-vfl", vertical, {"num_parties": 3}, "num_parties: 3 .* they are of 2 parties"),
        ("pubsub-vfl", split, {"test_fraction": 0.4}, "test_fraction: 0.4 .* a column says which rows are which"),
        ("mtcd", vertical, {**mtcd, "num_samples": 20}, "num_samples: 20 .* they say how many rows"),
        ("mtcd", vertical, {**mtcd, "num_features": 20}, "num_features: 20 .* they say how many columns"),
        ("mtcd", vertical, {**mtcd, "target_gap": 0.1}, "target_gap: 0.1 .* their exact minimum is not known"),
        ("horizontal", horizontal, {"dirichlet": 0.1}, "dirichlet: 0.1 .* they say who holds which rows"),
        ("horizontal", horizontal, {"clients_per_site": 2}, "clients_per_site: 2 .* its own file, and only that"),
        ("nebulafl", horizontal, {**cloud, "dirichlet": 0.1}, "dirichlet: 0.1 .* who holds which rows"),
        ("nebulafl", horizontal, {**cloud, "num_training": 9}, "num_training: 9 .* who holds which rows"),
        ("glasu", nodes, {"num_clients": 2, "edge_share": 0.5}, "edge_share: 0.5 .* the edges of its file"),
    ):
        found = find_protocol(protocol)
        config = build(found.Config, given)
        with pytest.raises(BadInput, match=told.replace(" .* ", " .*is not allowed with own files: .*")):
            load_data(found, config, str(path), 0)
    agreed = build(find_protocol("pubsub-vfl").Config, {"alignment": "hash", "num_parties": 2})
    load_data(find_protocol("pubsub-vfl"), agreed, str(vertical), 0)
    vertical.write_text(vertical.read_text().replace("b.csv", "b.parquet") + 'csv = { separator = ";" }\n')
    with pytest.raises(BadInput, match=r"parties\.b\.csv: .* is not allowed: b\.parquet is no CSV file"):
        load_data(find_protocol("pubsub-vfl"), agreed, str(vertical), 0)
