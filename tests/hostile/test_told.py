"""What reaches the driver or another organisation from a site beside sums: why no model of others' making steers it.

A failure with a name, a count or a flag that follows from rows under a model that another organisation chooses tells a
bit of these rows in each run, without noise. What is told is listed here with a reason; what is new has none.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors import inspection
from fedactors.actors.context import Context
from fedactors.cli.main import main
from fedactors.data import new_rows
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu import serving as graphs
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.mtcd import serving as tokens
from fedactors.protocols.tablepuppet import serving as tables
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.glasu import federation as small_graphs
from tests.protocols.mtcd.test_serving import trained
from tests.protocols.tablepuppet.test_serving import shop as shop
from tests.serving.predicting import predicted

ROOT = Path(__file__).resolve().parents[2]

# --- errors, which name the site ---

CALLER = "follows from what the caller sends, the calls before it, and the settings"
EARLY = "follows from the site's own data, the settings and names of columns, before it is told any model"
NUMBERS = "follows from the number of rows, or from ids that are shared, which the page of sites says"
OPEN = "is raised only where neither masks nor noise hide what it is about, which leaves itself"
SHOWN = "stops by name under masks, which site show and the page of sites say"
TOGETHER = "is said of all together, and read from a sum"
ELSEWHERE = "is raised by who has no rows of its own, about what arrived there, or about the calls of its own driver"
MISTAKE = "is a mistake in code or settings, or of code of the user's own, which does not run between organisations"
AFTER = "is raised in the process of a user who reads a trained part"

RAISED: dict[str, dict[str, str]] = {
    "fedactors/actors/actor.py": {
        MISTAKE: "Resources.__post_init__ Actor.caller Actor.begin Actor.record_privacy",
        CALLER: "Actor.check_sizes",
    },
    "fedactors/data/alignment/ids.py": {
        CALLER: "answer follow psi_answer",
        NUMBERS: "check_number common_rows follow_order",
        ELSEWHERE: "_parts _intersect check_fingerprints psi_intersect",
    },
    "fedactors/data/alignment/nodes.py": {
        CALLER: "NodeHolder.take_labels",
        EARLY: "NodeHolder.align NewNodeHolder.load _trained_state",
    },
    "fedactors/data/alignment/rows.py": {
        CALLER: "JoinMember.prepare JoinMember.receive_secret JoinMember._told check_tables RowHolder.take_positions",
        EARLY: "RowHolder.open NewRowHolder.load joined_vertical load_described_rows _trained_state load_block "
        "JoinMember._named",
        MISTAKE: "JoinMember.joiners JoinMember.send_keys",
        ELSEWHERE: "check_keys RowMapper.map_rows",
    },
    "fedactors/data/new_rows.py": {
        CALLER: "check_ending",
        EARLY: "check_called ActorState.__getitem__ state_of",
    },
    "fedactors/learning/local_training.py": {
        EARLY: "train_locally check_private",
        NUMBERS: "_Workspace.train train_privately",
        MISTAKE: "weighted_mean per_sample_gradients",
    },
    "fedactors/learning/many_clients.py": {NUMBERS: "_plan"},
    "fedactors/learning/metrics.py": {MISTAKE: "auc"},
    "fedactors/learning/models.py": {
        EARLY: "build_skeleton check_size _whole_numbers _image",
        MISTAKE: "_user_model _copy_of",
    },
    "fedactors/learning/network.py": {
        EARLY: "local_entries find_device",
        CALLER: "load_vector",
        MISTAKE: "FunctionalModel.__init__ FunctionalModel.views",
    },
    "fedactors/learning/optimizers.py": {
        EARLY: "OptimizerSpec.__post_init__ Schedule.__post_init__",
        NUMBERS: "check_summed_steps",
    },
    "fedactors/learning/user_models.py": {
        MISTAKE: "check_name check_model check_repeats _built _check_entries _check_split check_loss "
        "check_loss.value_of check_metric.numbers_of user_metrics hold_object",
        CALLER: "check_base",
    },
    "fedactors/privacy/mechanisms.py": {
        MISTAKE: "clip_rows add_gaussian add_laplace randomised_response randomised_labels _labels randomised_values "
        "pubsub_sigma",
    },
    "fedactors/privacy/noise.py": {MISTAKE: "_check_steps"},
    "fedactors/secure_sums/actors.py": {
        SHOWN: "SecureSummand.masked SecureSummand.check_total",
        MISTAKE: "SecureSummand.heard",
        CALLER: "SecureSummand._sums SecureSummand.greet",
        TOGETHER: "check_fits",
        ELSEWHERE: "SecureSums.total SecureSums.check_members",
    },
    "fedactors/secure_sums/primitives.py": {
        MISTAKE: "split join FixedPoint.noise_steps",
        SHOWN: "FixedPoint.encode",
    },
    "fedactors/secure_sums/protocol.py": {
        CALLER: "SecureSumClient.__init__ SecureSumClient._refuse",
        ELSEWHERE: "SecureSumServer.arrived SecureSumServer.confirmations unmasked_sum _check_alike _secret",
    },
    "fedactors/serving/parts.py": {AFTER: "Part.network Part._module Part.preprocess Part.ids read_part"},
    "fedactors/serving/predictions.py": {
        MISTAKE: "PredictingParty.make_part TopHolder.top_of SummingParty.point SumExchange.point "
        "ModelServer.make_part PredictingSite.make_model PersonalSite.make_part",
        EARLY: "PredictingParty.load PredictingSite.load PredictingSite._load",
        CALLER: "PredictingParty.contribute PredictingOwner._whole_part SummingParty._check_is_open "
        "SummingParty.contribute SummingParty.tell_order SummingParty.add_up PredictingSite.predict "
        "PredictingSite.trained PredictingSite._check_facts",
    },
    "protocols/glasu/aggregation.py": {ELSEWHERE: "add AggregationServer.prepare AggregationServer._sum"},
    "protocols/glasu/data.py": {
        EARLY: "load_data read_blocks check_sizes check_degrees check _check_split read_user_graph",
    },
    "protocols/glasu/sampling.py": {ELSEWHERE: "check_sampled"},
    "protocols/glasu/actors.py": {
        CALLER: "GraphClient._check_targets GraphClient._check_stamp GraphClient._check_batch GraphClient._sample "
        "GraphClient._take_aggregated GraphClient._take_share GraphClient.update GraphClient.advance "
        "GraphClient.score GraphClient._check_score",
        SHOWN: "GraphClient._update",
    },
    "protocols/glasu/serving.py": {
        EARLY: "PredictingClient.load _known",
        CALLER: "PredictingClient._next_segment",
        ELSEWHERE: "predict",
        AFTER: "part",
    },
    "protocols/horizontal/aggregation.py": {ELSEWHERE: "robust_mean user_step"},
    "protocols/horizontal/client_dp.py": {EARLY: "check_model", CALLER: "unit_change"},
    "protocols/horizontal/data.py": {EARLY: "load_data check_code _data_set _held_out _fitting"},
    "protocols/horizontal/standardisation.py": {OPEN: "column_sums", TOGETHER: "check_summed"},
    "protocols/horizontal/actors.py": {
        EARLY: "ClientProcess.load ClientProcess._check_record_privacy HorizontalServer.load",
        OPEN: "ClientProcess._train_personal ClientProcess._train",
        CALLER: "ClientProcess.sum_columns ClientProcess._check_no_return ClientProcess.take_scale "
        "ClientProcess._check_scale ClientProcess.weigh ClientProcess.take_weight ClientProcess._check_clip "
        "ClientProcess._check_wanted",
        ELSEWHERE: "HorizontalServer._gather HorizontalServer.prepare HorizontalServer._leave_absent check_change "
        "HorizontalServer._count_present HorizontalServer.validate HorizontalServer.measure_alone "
        "Aggregator.train Aggregator._check_sites",
    },
    "protocols/horizontal/serving.py": {EARLY: "make_part personal_parts", AFTER: "part"},
    "protocols/mtcd/actors.py": {
        CALLER: "Party.take_labels Party.measure Party.score Party._check_open TokenHolder._check_step "
        "ServedParty.relink ServedParty.relay ServedParty._follow_relayed ServedParty._check_order "
        "TokenClient._check_step TokenClient._check_weight TokenClient._check_momentum",
    },
    "protocols/mtcd/baselines/dcpa.py": {
        MISTAKE: "prox_conjugate",
        CALLER: "DcpaClient.run_iterations DcpaClient.take_dual",
        ELSEWHERE: "DcpaClient._received",
    },
    "protocols/mtcd/baselines/stcd.py": {
        CALLER: "StcdClient._check_walk StcdClient._begin StcdClient.take_prelude",
        ELSEWHERE: "StcdClient.walk_on",
    },
    "protocols/mtcd/baselines/svfl.py": {CALLER: "SvflClient._check_round_step"},
    "protocols/mtcd/data.py": {
        EARLY: "load_data _user_data _generated _fitting weights_of PartyRows._local_labels",
        CALLER: "PartyRows.order",
    },
    "protocols/mtcd/networks.py": {EARLY: "bottom_spec"},
    "protocols/mtcd/objective.py": {CALLER: "check_data", ELSEWHERE: "solve solve_sparse_logistic"},
    "protocols/mtcd/roaming.py": {
        EARLY: "make_graph _check_starts require_connected lay_out",
        ELSEWHERE: "Roaming._sweep Roaming._check_visited",
    },
    "protocols/mtcd/server.py": {
        ELSEWHERE: "GatheringServer.take_labels GatheringServer.safe_step GatheringServer._collect TokenServer.roam",
    },
    "protocols/mtcd/serving.py": {EARLY: "make_part", AFTER: "part"},
    "protocols/nebulafl/actors.py": {
        CALLER: "NebulaCenter.receive NebulaCenter._take NebulaCenter.set_present",
        ELSEWHERE: "Auditor.load Auditor.open_lease Auditor.measure",
    },
    "protocols/nebulafl/baselines/actors.py": {
        CALLER: "OrderCenter._check_rate OrderCenter._check_containers OrderCenter.start_round",
        ELSEWHERE: "FlatExchange.begin_run FlatExchange.arrive FlatExchange.container_news RoundExchange.take",
    },
    "protocols/nebulafl/baselines/flat_averaging.py": {MISTAKE: "staleness"},
    "protocols/nebulafl/baselines/hierarchical.py": {MISTAKE: "MeanRound.finished RingRound.finished"},
    "protocols/nebulafl/algorithm.py": {MISTAKE: "selection_probabilities random_probabilities"},
    "protocols/nebulafl/data.py": {
        EARLY: "load_data _at_sites _user_data _of_files _check_centers _check_outages _make_catalogue _make_network "
        "_capacities _tree _table",
    },
    "protocols/nebulafl/baselines/secure_sums.py": {
        CALLER: "SummingCenter.follow SummingCenter.take_weight SummingCenter.give_part",
    },
    "protocols/nebulafl/containers.py": {
        CALLER: "check_speaker ContainerCenter._check_start ContainerCenter._check_time "
        "ContainerCenter.container_news",
    },
    "protocols/nebulafl/serving.py": {AFTER: "part"},
    "protocols/nebulafl/training.py": {EARLY: "Trainings._check_noise Trainings._admit"},
    "protocols/pubsub_vfl/actors.py": {
        CALLER: "PartyWorker._check_first PartyWorker._batch_of ActiveWorker.embed ActiveWorker.evaluate",
        EARLY: "ActiveWorker.load",
    },
    "protocols/pubsub_vfl/broker.py": {ELSEWHERE: "Dispatch._abandon Pipeline._check"},
    "protocols/pubsub_vfl/data.py": {
        EARLY: "load_data",
        CALLER: "PartyRows.draw_parts PartyRows.draw PartyRows.part",
        MISTAKE: "PartyRows.train_rows PartyRows.prepared",
    },
    "protocols/pubsub_vfl/serving.py": {EARLY: "_trained PredictingActive.make_part"},
    "protocols/tablepuppet/actors.py": {
        EARLY: "TableClient.open",
        CALLER: "TableClient._check_partitions TableClient.receive_facts TableClient.send_labels "
        "TableClient.receive_positions TableClient.receive_joined_rows TableClient.receive_test_rows "
        "TableClient._distinct TableClient._check_batch_size TableClient._check_rho TableClient.score "
        "TableClient.give_rows TableClient._positions TableClient._check_counts TableClient._check_outputs "
        "TableClient._check_batches",
        OPEN: "TableClient._check_agreement",
    },
    "protocols/tablepuppet/data.py": {
        EARLY: "load_data _ruled name_tables loss_of assign_clients declared_facts _moments_of_range check_facts "
        "check_classes label_values _texts _numbers",
    },
    "protocols/tablepuppet/loj_operator.py": {ELSEWHERE: "JoinServer._check_labels"},
    "protocols/tablepuppet/lou_operator.py": {
        ELSEWHERE: "UnionOperator.send_keys UnionOperator._check_alike bare check_labels",
    },
    "protocols/tablepuppet/mapping.py": {ELSEWHERE: "_check_parts"},
    "protocols/tablepuppet/serving.py": {
        EARLY: "make_part",
        CALLER: "PredictingTable.predict PredictingTable.take",
        AFTER: "part",
    },
}  # fmt: skip


NO_ROWS = {
    "__init__", "config", "run", "planner", "profiler", "pilots", "dry_run", "auditing", "hardware", "scheduler",
    "costs", "privacy", "exported",
}  # fmt: skip
"""Files of protocols that run before it, at the driver, in an audit, or on numbers of rows alone."""


def looked_at() -> list[Path]:
    """Return the files of what runs at a site on its rows."""
    packages = ("learning", "secure_sums", "serving", "data/alignment")
    more = ("data/new_rows.py", "privacy/mechanisms.py", "privacy/noise.py", "actors/actor.py")
    found = [file for package in packages for file in (ROOT / "fedactors" / package).glob("*.py")]
    found += [ROOT / "fedactors" / file for file in more]
    found += [file for file in (ROOT / "protocols").rglob("*.py") if file.stem not in NO_ROWS]
    return sorted(set(found))


def raising(node: ast.AST, where: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from raising(child, f"{where}.{child.name}".lstrip("."))
        else:
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield where
            yield from raising(child, where)


def test_each_error_at_a_site_has_a_reason_why_no_model_of_others_brings_it_about() -> None:
    listed = {f"{file}: {name}" for file, found in RAISED.items() for names in found.values() for name in names.split()}
    found = {
        f"{file.relative_to(ROOT)}: {name}" for file in looked_at() for name in raising(ast.parse(file.read_text()))
    }
    assert found - listed == set(), "may a model of another organisation bring it about? then nobody else is told whose"
    assert listed - found == set(), "these raise nothing any more"


# --- messages ---

MASKS = {"secure_aggregation": True}
ROWS = {"record_clip_norm": 1.0, "record_noise_multiplier": 1.0}
CLIENTS = {"client_clip_norm": 1.0, "client_noise_multiplier": 1.0}
STOPS = {"on_party_loss": "stop"}
CENTERS = {"num_centers": 3, "num_containers": 3, "active_per_center": 1, "duration": 9000, "num_rounds": 2}
SMOOTH = {"feature_dp": 1.0, "model": "linear", "admm": "paper_sgd"}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("horizontal", {"num_clients": 3, **MASKS, **STOPS}),
    ("horizontal", {"num_clients": 3, **ROWS}),
    ("horizontal", {"num_clients": 3, **CLIENTS}),
    ("horizontal", {"num_clients": 3, **CLIENTS, **MASKS, **STOPS}),
    ("mtcd", {"num_clients": 3, "learning_rate": 0.1, **MASKS}),
    *(
        ("mtcd", {"num_clients": 3, "learning_rate": 0.1, "noise": "gaussian", "algorithm": name})
        for name in ("mtcd", "stcd", "svfl")
    ),
    ("glasu", MASKS),
    ("glasu", {"clip_norm": 1.0, "noise_multiplier": 1.0, "max_degree": 4}),
    ("nebulafl", {"algorithm": "fedavg-hierarchical", **CENTERS, **MASKS, **STOPS}),
    *(
        ("nebulafl", {"algorithm": name, **ROWS})
        for name in ("nebulafl", "fedavg", "fedavg-hierarchical", "fedasync", "fedbuff")
    ),
    ("pubsub-vfl", {"privacy_mu": 1.0}),
    ("tablepuppet", MASKS),
    *(("tablepuppet", {"algorithm": name, **SMOOTH}) for name in ("rfl-sgd-v", "rfl-sgd", "rfl-admm-v", "rfl-admm")),
]
"""Runs under masks or noise, of each protocol and its baselines that have them."""
IN_SUMS = {"Masked", "SealedShares", "SumKeys", "Confirmation", "Unmasking", "IdentityShare"}
"""What `fedactors.secure_sums` sends: uniform words, keys, shares and signatures."""
NO_ORGANISATION_OF_ROWS = {
    "server", "the run's driver", "its server only", "its server or aggregator only", "its adder only",
    "its joiners only", "auditor", "broker",
}  # fmt: skip

BEFORE = "leaves before any model is there: of ids, keys, columns, labels and settings"
ORDER = "says which work is done, in numbers that the settings and the seed bound"
HIDDEN = "is under the noise that is accounted for, or is its declared gap"
WITHIN = "stays within its party"
SCORE = "is how good a model is, by a number of measurements that the settings bound, as site show says"
MODEL = "is of a model that its receiver has, or had in training, anyway"
COUNTS = "counts rows by their own values, ids and partners; no output of a model is in it (`as_told`)"
GAP = "is of the active party's rows, whose line of the ledger says that nothing is claimed for them"
COSTS = "is of hardware and times, which the page of sites says that others see"

JOINS = {
    "AlignmentQuestion: how content": BEFORE,
    "AlignmentAnswer: parts digests": BEFORE,
    "AlignmentOrder: salt digests parts": BEFORE,
}
QUERIES = {
    "Schema: columns kinds": BEFORE,
    "HashSecret: key schemas": BEFORE,
    "KeyHashes: num_rows num_null hashes": BEFORE,
}
OF_TABLES = {
    **JOINS,
    **QUERIES,
    "ColumnsTrained: columns": WITHIN,
    "NewSlice: features unusable positions called order lost": WITHIN,
    "JoinSummary: num_joined num_rows num_null unmatched": BEFORE,
    "TableSlice: features feature_names keeps_scale columns labels has_labels class_names positions": WITHIN,
}
PREDICTED = {"Predicted: num_rows num_predicted num_alone rejections unpredicted": COUNTS}
MESSAGES: dict[str, dict[str, str]] = {
    "horizontal": {
        **PREDICTED,
        "Introduction: num_clients width columns csv base": BEFORE,
        "Change: num_clients weight loss change control_change": f"{HIDDEN}; no loss is told under noise, and the "
        "weight is the number of rows",
        "ClippedChanges: values": "leaves only to a server that is trusted to add the noise",
        "LocalScores: num_rows metrics": "no row is validated with under noise, so that it is empty",
    },
    "mtcd": {
        **OF_TABLES,
        **PREDICTED,
        "Aligned: num_shared num_local num_rejected absent": BEFORE,
        "Labels: train test weights": BEFORE,
        "RowCount: num_train num_test": BEFORE,
        "Measured: h penalty": "is refused under masks or noise",
        "SquaredNorm: value": "is refused under masks, or noise with a given step size, and a declared gap else",
        "ProbeImage: image": "is refused under masks, or noise with a given step size, and a declared gap else",
        "Probe: vector": ORDER,
        "NormOrder:": ORDER,
        "Gather: round_": ORDER,
        "SyncTokens: round_ reissued weight send_representation momentum": ORDER,
        "SyncedZ: round_ step z theta_0 send_representation": HIDDEN,
        "RoamingDone: round_ token attempt visited": ORDER,
        "TokenAtRest: holder": ORDER,
        "Token: round_ token attempt hop hops_left step issuer visited z theta_0": HIDDEN,
        "Representation: round_ h penalty": f"{HIDDEN}; no penalty is told under noise",
        "Quality: metrics": SCORE,
        "Contribution: values unusable": HIDDEN,
        "Summed: values": HIDDEN,
        "Unusable: rows": BEFORE,
        "RowOrder: fingerprint": BEFORE,
    },
    "glasu": {
        **JOINS,
        **PREDICTED,
        "Introduction: num_nodes num_classes class_names train remarks": BEFORE,
        "NodeLabels: labels num_classes class_names": BEFORE,
        "NodesSummary: notes": BEFORE,
        "UnusableNodes: nodes": BEFORE,
        "UserNodes: indptr indices features labels num_classes parts class_names": WITHIN,
        "NewNodes: indptr indices features ids lines unusable lost": WITHIN,
        "Representation: values": HIDDEN,
        "Logits: values": HIDDEN,
        "Prediction: values accuracy": HIDDEN,
        "Report: first_loss last_loss": HIDDEN,
        "Scores: validation test": SCORE,
    },
    "nebulafl": {
        **PREDICTED,
        "CenterReport: center trainings restored versions": ORDER,
        "CenterFacts: center sizes seconds": f"numbers of rows, and a time: {COSTS}",
        "CenterNews: center present time": ORDER,
        "Columns: count names": BEFORE,
        "LeaseOpened: center number unit container start price": COSTS,
        "LeaseClosed: center number end useful": COSTS,
        "MasterModel: center rotation version parameters": HIDDEN,
        "TrainingResult: task center num_samples loss_rms seconds parameters": f"{HIDDEN}; no loss is told under noise",
        "RoundResult: center round num_samples num_models parameters": HIDDEN,
        "Progress: finished": ORDER,
        "RoundDone: center round": ORDER,
        "SharedModel: rotation version parameters": HIDDEN,
        "WholeModel: parameters inputs task num_classes reading base targets": MODEL,
    },
    "pubsub-vfl": {
        **OF_TABLES,
        **PREDICTED,
        "Aligned: num_rows num_shared num_local num_rejected absent": BEFORE,
        "InitialOrders: epoch assigned": ORDER,
        "PartRequest: part": ORDER,
        "Report: published done room wait epoch": f"{ORDER}; payloads are under noise",
        "Embedding: batch_id epoch sequence time values": HIDDEN,
        "PartEmbedding: part values": HIDDEN,
        "Contribution: values unusable": HIDDEN,
        "Gradient: batch_id epoch sequence time values": HIDDEN,
        "EpochLoss: loss_sum num_rows": GAP,
        "Evaluated: metrics unpredicted": SCORE,
        "TopModel: parameters": MODEL,
    },
    "tablepuppet": {
        **QUERIES,
        **PREDICTED,
        "Labels: train is_test num_classes": BEFORE,
        "Facts: categories counts totals squares classes": BEFORE,
        "Agreement: facts seed": BEFORE,
        "AggregatedGradient: values next_rows": HIDDEN,
        "Consensus: w u": HIDDEN,
        "Derivatives: values batch_size next_rows": "follows from labels and predictions that its sender was told",
        "LocalParameters: theta": HIDDEN,
        "PartialGradient: values": HIDDEN,
        "Predictions: values": HIDDEN,
        "TestPredictions: values": HIDDEN,
        "Score: total loss count tally": SCORE,
        "TestScore: score loss more": SCORE,
        "UnusableRows: values": BEFORE,
    },
}


def sent_beside_sums() -> dict[str, dict[str, str]]:
    """Return what organisations of these runs tell others outside of sums, with its fields, by protocol."""
    found: dict[str, dict[str, str]] = {}
    for name, words in RUNS:
        protocol = find_protocol(name)
        config = protocol.Config(**{**protocol.smoke, **words})
        for one in itertools.chain(
            inspection.describe_messages(protocol, config),
            inspection.describe_predictions(protocol, config),
            inspection.describe_joins(protocol),
        ):
            is_others = set(one["sender"].split(", ")) <= NO_ORGANISATION_OF_ROWS
            if one["message"] not in IN_SUMS and not is_others:
                fields = " ".join(field["name"] for field in one["fields"])
                found.setdefault(name, {})[f"{one['message']}: {fields}".strip()] = one["sender"]
    return found


def test_each_message_beside_sums_has_a_reason_why_no_model_of_others_steers_it() -> None:
    found = sent_beside_sums()
    assert found.keys() == MESSAGES.keys()
    for name, messages in found.items():
        missing = {what: sender for what, sender in messages.items() if what not in MESSAGES[name]}
        assert missing == {}, f"{name}: does a number of it follow from rows under a model that others choose?"
        assert MESSAGES[name].keys() - messages.keys() == set(), f"{name}: nobody tells these any more"


CONTROL = {
    **dict.fromkeys(("prepare", "connect", "load", "open", "meet", "written", "commit", "finish", "end"), "nothing"),
    "lost": "names of sites",
    "watch": "the failure that ends the run here; see `RAISED`",
    "call": "a reply to the driver; see `MESSAGES`",
    "snapshot": "digests of states, under a key that only the site has",
    "drain": "how many messages of which kind and size its actors sent, which others saw or which the settings say; "
    "seconds of waiting, which the page of sites says",
}
"""What a site tells the driver for each thing that it asks for."""


def test_each_answer_of_a_site_to_its_driver_is_listed() -> None:
    tree = ast.parse((ROOT / "fedactors/federation/site_run.py").read_text())
    (asked,) = (one for one in ast.walk(tree) if isinstance(one, ast.AsyncFunctionDef) and one.name == "_do")
    cases = [one.pattern for one in ast.walk(asked) if isinstance(one, ast.match_case)]
    patterns: list[Any] = [one for one in cases if isinstance(one, ast.MatchSequence)]
    verbs = [ast.literal_eval(one.patterns[0].value) for one in patterns]
    assert sorted(verbs) == sorted(CONTROL)
    told = {
        verb
        for verb, case in zip(verbs, (one for one in ast.walk(asked) if isinstance(one, ast.match_case)), strict=False)
        for one in ast.walk(case)
        if isinstance(one, ast.Return | ast.Raise) and (one.value if isinstance(one, ast.Return) else one.exc)
    }
    silent = {verb for verb, what in CONTROL.items() if what == "nothing"}
    assert told & silent <= {"written", "commit"}, "these two refuse what the driver did not ask for"


def _as_between_sites(monkeypatch: pytest.MonkeyPatch, is_between: bool) -> None:
    """Let classes be predicted for no row, at an organisation among others."""
    monkeypatch.setattr(Context, "is_between_organisations", is_between)
    for module in (new_rows, tables):
        honest = module.write_predictions
        monkeypatch.setattr(module, "write_predictions", lambda *a, honest=honest, **how: honest(*a, **how) * 0 + 3)


def _told_unpredicted(run: Any) -> list[int]:
    return [one.counts.unpredicted for one in run]


@pytest.mark.slow
@pytest.mark.parametrize("is_between", [True, False])
@pytest.mark.parametrize("protocol", ["glasu", "mtcd"])
def test_no_prediction_tells_the_driver_which_classes_are_predicted_for_no_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str, is_between: bool
) -> None:
    """It follows from outputs, in which models of others have a part: whether a row lies beyond some bound."""
    config: Any
    predict: Any
    if protocol == "glasu":
        config = small_graphs.settings()
        _, memory = small_graphs.simulate(config)
        data, states, predict = load_data(config, small_graphs.DATA, 0), memory.snapshots[-1].actors, graphs.predict
    else:
        config, data, states = trained("num_clients=3 num_rounds=2 topology=complete", "breast-cancer")
        predict = tokens.predict
    told, execute = list[int](), SimulatedRuntime.execute

    def listen(self: SimulatedRuntime, work: Any) -> Any:
        found = execute(self, work)
        told.extend(_told_unpredicted(found))
        return found

    monkeypatch.setattr(SimulatedRuntime, "execute", listen)
    _as_between_sites(monkeypatch, is_between)
    predicted(predict, config, data, states, tmp_path)
    assert told == [0 if is_between else 3] * len(told)
    assert told


@pytest.mark.slow
@pytest.mark.parametrize("is_between", [True, False])
def test_no_prediction_of_tables_tells_it_either(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shop: Path, is_between: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = (shop / "runs").iterdir()
    _as_between_sites(monkeypatch, is_between)
    capsys.readouterr()
    words = ["--data", str(shop / "new.toml"), "--output", str(tmp_path / "p.csv"), "--format", "json"]
    assert main(["predict", str(run), *words]) == 0
    (told,) = json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]
    assert told["unpredicted"] == (0 if is_between else 3)
