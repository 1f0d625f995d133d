"""Settings: what each field of each protocol refuses, read off its type, and contradictions, written down."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fedactors.inspection import Setting, settings_of
from fedactors.plugins import find_protocol
from tests.bad_inputs.cases import Case, command, run
from tests.bad_inputs.world import NAMED, SMALL, small

INFINITE = {
    name
    for protocol in SMALL
    for name, field in find_protocol(protocol).Config.__pydantic_fields__.items()
    if any(getattr(rule, "allow_inf_nan", False) for rule in field.metadata)
}
"""Numbers that may be infinite because their fields say so; no others may."""
assert {"deadline", "privacy_mu", "gradient_mu"} <= INFINITE


def _refused(setting: Setting) -> Iterator[str]:
    """Yield values that a field refuses, by what it says that it allows."""
    allowed = setting.allowed
    if setting.choices == ("true", "false"):
        yield from ("maybe", "2")
    elif "integer" in allowed and not allowed.startswith("list"):
        yield from ("1.5", "99999999999999999999999", "five")
        if ">" in allowed:
            yield "-3"
    elif "number" in allowed and not allowed.startswith(("list", "number,")):
        yield from ("nan", "-inf", "1,2")
        if setting.name not in INFINITE:
            yield "inf"
        if ">" in allowed:
            yield "-0.5"
        if "<" in allowed:
            yield "1e30"
    elif setting.choices:
        yield from ("no-such-word", "")
    elif allowed.startswith(("list", "number,")):
        yield from ("[", '{"a": 1}')


def _generated() -> Iterator[Case]:
    for name in SMALL:
        protocol = find_protocol(name)
        by_command = itertools.cycle(["run", "run", "run", "inspect", "sweep", "submit"])
        for setting in settings_of(protocol.Config):
            for value in _refused(setting):
                word, which = f"{setting.name}={value}", next(by_command)
                if setting.allowed == "text | none":
                    which = "run"  # only who knows the data can tell
                if which == "sweep" and (not value or "," in value or "[" in value or "{" in value):
                    which = "inspect"
                if which == "run":
                    yield run(name, [word], f"{setting.name}")
                elif which == "sweep":
                    yield command(["sweep", name, word, "--quiet", "--out", "out"], setting.name)
                elif which == "submit":
                    yield command(["submit", name, word, "--address", "http://127.0.0.1:9"], setting.name)
                else:
                    yield command([which, name, word], setting.name)


def _of(protocol: str, words: str, *says: str, data: str | None = None, **more: Any) -> Case:
    """Return a case whose other settings are those of a quick run."""
    given = [word.partition("=")[0] for word in words.split()]
    flags = ["--data", data or NAMED[protocol]]
    return run(protocol, f"{small(protocol, *given)} {words}", *says, flags=flags, **more)


_BLOCKS = (
    *("blocks:", "blocks:0x2x2", "blocks:axb", "blocks:5", "blocks:-4x2x2", "blocks:20x4x0"),
    *("blocks:1000000000000x2x2", "blocks:20x1000000000x2", "blocks:20x4x1000000000000", "blocks:99999x99999x2"),
)
GENERATED = list(_generated())
_LONG = "num_rounds=30 task=regression batch_size=100"
_RATE = ("learning_rate: 1e+15 diverges",)
_IGNORED = (
    "planet_rule=shifted algorithm=fedavg",
    "center_rounds=3",
    "num_clusters=2 algorithm=fedavg",
    "num_proxy=10 algorithm=fedhisyn",
    "distillation_epochs=3",
    "buffer_size=2 algorithm=pisces",
    "aggregation_window=90 algorithm=fedbuff",
    "staleness_bound=2 algorithm=fedbuff",
    "mixing=0.3 algorithm=fedsa",
    "staleness_exponent=1",
    "secure_range=5",
    "normalisation=none model=linear",
)
WRITTEN = [
    # pubsub-vfl
    _of("pubsub-vfl", "learning_rate=1e30", "learning_rate", "1e+30"),
    _of("pubsub-vfl", "learning_rate=1e15 optimizer=sgd num_epochs=3", "learning_rate"),
    _of("pubsub-vfl", "learning_rate=1e15 num_epochs=5 model=mlp", "learning_rate: 1e+15 diverges"),
    _of("pubsub-vfl", "clip_norm=inf privacy_mu=1", "clip_norm", "inf"),
    _of("pubsub-vfl", "gradient_clip_norm=inf gradient_mu=1", "gradient_clip_norm"),
    _of("pubsub-vfl", "privacy_mu=nan", "privacy_mu"),
    _of("pubsub-vfl", "privacy_mu=1e-300", "privacy_mu"),
    _of("pubsub-vfl", "target=nan", "target"),
    _of("pubsub-vfl", "target=inf", "target"),
    _of("pubsub-vfl", "hidden_size=1000000000", "hidden_size", "1000000000"),
    _of("pubsub-vfl", "embedding_size=1000000000", "embedding_size"),
    _of("pubsub-vfl", "num_layers=1000000000", "num_layers"),
    _of("pubsub-vfl", "hidden_size=60000 num_layers=3 model=resnet", "hidden_size"),
    _of("pubsub-vfl", "deadline=1e-9", "deadline"),
    _of("pubsub-vfl", "deadline=0", "deadline"),
    _of("pubsub-vfl", "num_parties=1", "num_parties"),
    _of("pubsub-vfl", "num_parties=11", "num_parties"),
    _of("pubsub-vfl", "feature_split=10,20,3", "feature_split"),
    _of("pubsub-vfl", "feature_split=30,0", "feature_split"),
    _of("pubsub-vfl", "feature_split=a,b", "feature_split"),
    _of("pubsub-vfl", "algorithm=vfl num_active_workers=2", "num_active_workers"),
    _of("pubsub-vfl", "algorithm=vfl-ps num_active_workers=2", "num_passive_workers"),
    _of("pubsub-vfl", "algorithm=avfl num_passive_workers=2", "num_passive_workers"),
    _of("pubsub-vfl", "local_updates=2 algorithm=avfl", "local_updates", "avfl"),
    _of("pubsub-vfl", "local_updates=2 optimizer_at=server num_active_workers=2", "local_updates", "server"),
    _of("pubsub-vfl", "local_updates=2 bottom_training=frozen embedding_mu=1", "local_updates", "'frozen'"),
    _of("pubsub-vfl", "cached_batches=3", "cached_batches", "local_updates"),
    _of("pubsub-vfl", "algorithm=splitnn", "algorithm", "'splitnn'"),
    _of("pubsub-vfl", "test_fraction=0.99999", "test_fraction"),
    _of("pubsub-vfl", "test_fraction=1", "test_fraction"),
    _of("pubsub-vfl", "validation_fraction=0.9999", "validation_fraction"),
    _of("pubsub-vfl", "delta=0", "delta"),
    _of("pubsub-vfl", "delta=1", "delta"),
    _of("pubsub-vfl", "report_interval=nan", "report_interval"),
    _of("pubsub-vfl", "cpus_per_worker=inf", "cpus_per_worker"),
    _of("pubsub-vfl", "cpus_per_worker=1e300", "cpus_per_worker"),
    _of("pubsub-vfl", "max_attempts=0", "max_attempts"),
    _of("pubsub-vfl", "on_party_loss=continue", "on_party_loss"),
    _of("pubsub-vfl", "lerning_rate=0.1", "lerning_rate", "learning_rate"),
    _of("pubsub-vfl", "alignment=fuzzy", "alignment"),
    # mtcd
    _of("mtcd", "learning_rate=1e15 num_rounds=5", "learning_rate", later=True),
    _of("mtcd", "learning_rate=1 num_rounds=20 num_samples=100 num_features=20", "learning_rate", later=True),
    _of("mtcd", "algorithm=dcpa dcpa_dual_step=1e300 num_rounds=20", "dcpa_dual_step"),
    _of("mtcd", "problem=network learning_rate=1e15 num_rounds=9", "learning_rate", later=True),
    _of("mtcd", "ridge_penalty=1e308", "ridge_penalty"),
    _of("mtcd", "l1_penalty=-1 problem=sparse-logistic", "l1_penalty"),
    _of("mtcd", "target_gap=nan", "target_gap"),
    _of("mtcd", "target_gap=inf", "target_gap"),
    _of("mtcd", "visit_timeout=nan", "visit_timeout"),
    _of("mtcd", "visit_timeout=inf", "visit_timeout"),
    _of("mtcd", "clip_norm=inf noise=gaussian", "clip_norm"),
    _of("mtcd", "noise_multiplier=inf noise=gaussian", "noise_multiplier"),
    _of("mtcd", "num_samples=1000000000 num_features=2000000", "num_samples"),
    _of("mtcd", "num_clients=1000000 num_features=2000000", "num_clients"),
    _of("mtcd", "representation_size=1000000000 problem=network", "representation_size"),
    _of("mtcd", "hidden_size=1000000000 problem=network", "hidden_size"),
    _of("mtcd", "num_features=1", "num_features"),
    _of("mtcd", "num_tokens=4", "num_tokens"),
    _of("mtcd", "clusters=[[0]]", "clusters"),
    _of("mtcd", "clusters=[[0,1],[1]]", "clusters"),
    _of("mtcd", "clusters=[[0,7]]", "clusters"),
    _of("mtcd", "clusters=[[0],[]]", "clusters"),
    _of("mtcd", "clusters=[[", "clusters"),
    _of("mtcd", "clusters=[[0.5],[1]]", "clusters"),
    _of("mtcd", "server_links=none", "server_links"),
    _of("mtcd", "server_links=9", "server_links"),
    _of("mtcd", "server_links=-1", "server_links"),
    _of("mtcd", "server_links=[]", "server_links"),
    _of("mtcd", "start=5", "start"),
    _of("mtcd", "start=0,1 num_tokens=1", "start"),
    _of("mtcd", "topology=mesh", "topology", "'mesh'"),
    _of("mtcd", "topology=nowhere.txt", "topology", "'nowhere.txt'"),
    _of("mtcd", "topology=.", "topology"),
    _of("mtcd", "topology=", "topology"),
    _of("mtcd", "topology=/", "topology"),
    _of("mtcd", "topology=empty algorithm=stcd", "topology", "stcd"),
    _of("mtcd", "topology=empty algorithm=dcpa", "topology", "dcpa"),
    _of("mtcd", "topology=empty server_links=0", "server"),
    _of("mtcd", "edge_probability=1.1 topology=erdos-renyi", "edge_probability"),
    _of("mtcd", "aggregation=concatenation", "aggregation"),
    _of("mtcd", "algorithm=dcpa problem=network", "algorithm"),
    _of("mtcd", "algorithm=dcpa batch_size=4", "batch_size"),
    _of("mtcd", "algorithm=svfl num_tokens=2", "num_tokens"),
    _of("mtcd", "algorithm=stcd num_tokens=2", "num_tokens"),
    _of("mtcd", "batch_size=60", "batch_size", "60"),
    _of("mtcd", "walk=sweep num_hops=0", "num_hops"),
    _of("mtcd", "walk=sweep start=0,1", "walk"),
    _of("mtcd", "backtracking=true problem=network", "backtracking"),
    _of("mtcd", "algorithm=stcd batch_size=4", "batch_size"),
    _of("mtcd", "algorithm=dcpa compression=top-k", "compression"),
    _of("mtcd", "algorithm=stcd compression=top-k", "compression"),
    _of("mtcd", "algorithm=stcd on_party_loss=continue", "on_party_loss"),
    _of("mtcd", "local_arithmetic=gram batch_size=4", "local_arithmetic"),
    _of("mtcd", "local_arithmetic=gram problem=sparse-logistic", "local_arithmetic"),
    _of("mtcd", "problem=network network=resnet18", "network"),
    _of("mtcd", "problem=network network=multi-view-cnn", "num_clients"),
    _of("mtcd", "quantise_bits=17 compression=quantise", "quantise_bits"),
    _of("mtcd", "compression_ratio=0 compression=top-k", "compression_ratio"),
    _of("mtcd", "problem=network network=resnet18", "num_clients", data="digits"),
    _of("mtcd", "problem=ridge", "problem", data="digits"),
    _of("mtcd", "num_clients=31 num_tokens=1", "31 parties", data="breast-cancer"),
    # glasu
    _of("glasu", "learning_rate=1e15 num_rounds=9", "learning_rate", later=True),
    _of("glasu", "learning_rate=1e15 optimizer=sgd num_rounds=9", "learning_rate", later=True),
    _of("glasu", "hidden_size=1000000000", "hidden_size"),
    _of("glasu", "num_layers=1000000000", "num_layers"),
    _of("glasu", "num_heads=3 backbone=gat", "num_heads"),
    _of("glasu", "num_clients=1000000", "num_clients"),
    _of("glasu", "num_clients=7", "num_clients"),
    _of("glasu", "aggregation_layers=0", "aggregation_layers"),
    _of("glasu", "aggregation_layers=2", "aggregation_layers"),
    _of("glasu", "aggregation_layers=1,1", "aggregation_layers"),
    _of("glasu", "aggregation_layers=1,0", "aggregation_layers"),
    _of("glasu", "aggregation_layers=-1,1", "aggregation_layers"),
    _of("glasu", "aggregation_layers=0,1 special_case=zhou", "aggregation_layers"),
    _of("glasu", "num_neighbours=2", "num_neighbours"),
    _of("glasu", "momentum=0.5", "momentum"),
    _of("glasu", "momentum=1 optimizer=sgd", "momentum"),
    _of("glasu", "secure_aggregation=true aggregation=concatenation", "secure_aggregation"),
    _of("glasu", "secure_aggregation=true num_clients=2", "secure_aggregation"),
    _of("glasu", "secure_aggregation=true special_case=standalone", "secure_aggregation"),
    _of("glasu", "noise_multiplier=1", "noise_multiplier"),
    _of("glasu", "noise_multiplier=1 clip_norm=1", "noise_multiplier"),
    _of("glasu", "noise_multiplier=1 clip_norm=1 max_degree=3 special_case=standalone", "noise_multiplier"),
    _of("glasu", "clip_norm=inf noise_multiplier=1 max_degree=3", "clip_norm"),
    _of("glasu", "noise_multiplier=inf clip_norm=1 max_degree=3", "noise_multiplier"),
    _of("glasu", "client_timeout=nan", "client_timeout"),
    _of("glasu", "client_timeout=inf", "client_timeout"),
    _of("glasu", "edge_share=0", "edge_share"),
    _of("glasu", "dropout=1", "dropout"),
    _of("glasu", "alpha=2", "alpha"),
    _of("glasu", "lam=0", "lam"),
    _of("glasu", "lam=1e300 backbone=gcnii num_rounds=3", "lam"),
    _of("glasu", "weight_decay=1e300 optimizer=sgd num_rounds=4", "weight_decay"),
    _of("glasu", "on_party_loss=restart", "on_party_loss"),
    *(_of("glasu", "num_clients=2", "blocks", data=name) for name in _BLOCKS),
    # nebulafl
    _of("nebulafl", "learning_rate=1e9", "learning_rate"),
    _of("nebulafl", "learning_rate=1e30", "learning_rate"),
    _of("nebulafl", "learning_rate=1e9 algorithm=fedavg", "learning_rate"),
    _of("nebulafl", "learning_rate=1e9 algorithm=fedasync", "learning_rate"),
    _of("nebulafl", "learning_rate=1e9 algorithm=fedavg-hierarchical", "learning_rate"),
    _of("nebulafl", "active_per_center=3", "active_per_center"),
    _of("nebulafl", "num_containers=1", "num_containers"),
    _of("nebulafl", "num_centers=9 num_containers=18", "num_centers"),
    _of("nebulafl", "num_centers=10000 num_containers=100000", "num_centers"),
    _of("nebulafl", "num_containers=1000000", "num_containers"),
    _of("nebulafl", "num_containers=1400", "num_"),
    _of("nebulafl", "model=resnet50", "model"),
    _of("nebulafl", "model=", "model"),
    _of("nebulafl", "num_training=5000", "num_training"),
    _of("nebulafl", "num_validation=1437", "num_validation"),
    _of("nebulafl", "num_proxy=5000 algorithm=fedhkt", "num_proxy"),
    _of("nebulafl", "dirichlet=1e-300", "dirichlet"),
    _of("nebulafl", "dirichlet=0", "dirichlet"),
    _of("nebulafl", "duration=inf", "duration"),
    _of("nebulafl", "rotation_interval=1e-9", "rotation_interval"),
    _of("nebulafl", "evaluation_interval=1e-9", "evaluation_interval"),
    _of("nebulafl", "aggregation_window=1e-9 algorithm=fedsa", "aggregation_window"),
    _of("nebulafl", "restart_seconds=nan", "restart_seconds"),
    _of("nebulafl", "staleness_exponent=inf algorithm=fedasync", "staleness_exponent"),
    _of("nebulafl", "mixing=0", "mixing"),
    _of("nebulafl", "target_accuracy=2", "target_accuracy"),
    _of("nebulafl", "outages=oregon", "outages"),
    _of("nebulafl", "outages=paris/0@1-2", "outages", "paris"),
    _of("nebulafl", "outages=oregon/99@1-2", "outages", "oregon/99"),
    _of("nebulafl", "outages=oregon/0@5-2", "outages"),
    _of("nebulafl", "outages=oregon/0@nan-2", "outages"),
    _of("nebulafl", "outages=oregon/0@1-inf", "outages"),
    _of("nebulafl", "outages=oregon/0@-1-2", "outages"),
    _of("nebulafl", "outages=oregon/-1@1-2", "outages"),
    _of("nebulafl", "outages=oregon/x@1-2", "outages"),
    _of("nebulafl", "outages=/0@1-2", "outages"),
    _of("nebulafl", "attestation=nowhere:hook", "attestation"),
    _of("nebulafl", "attestation=os", "attestation"),
    _of("nebulafl", "attestation=os:no_such", "attestation"),
    _of("nebulafl", "attestation=os:sep", "attestation"),
    _of("nebulafl", "attestation=:", "attestation"),
    _of("nebulafl", "attestation=..x:y", "attestation"),
    _of("nebulafl", "catalogue=elsewhere", "catalogue", "'elsewhere'"),
    _of("nebulafl", "network=elsewhere", "network", "'elsewhere'"),
    _of("nebulafl", "catalogue=", "catalogue"),
    _of("nebulafl", "catalogue=.", "catalogue"),
    _of("nebulafl", "network=/", "network"),
    _of("nebulafl", "ablation=random algorithm=fedavg", "ablation"),
    _of("nebulafl", "ablation=random resource_policy=cheapest", "resource_policy"),
    _of("nebulafl", "num_clusters=0 algorithm=fedhisyn", "num_clusters"),
    # settings that the others would let be ignored
    *(_of("nebulafl", words, words.partition("=")[0], "which ignores it") for words in _IGNORED),
    _of("nebulafl", "price_rule=training resource_policy=fastest", "price_rule", "resource_policy=nebulafl, cheapest"),
    _of("nebulafl", "restart_seconds=5 on_party_loss=stop", "restart_seconds", "on_party_loss=restart"),
    _of("mtcd", "l1_penalty=1", "l1_penalty", "problem=sparse-logistic"),
    _of("mtcd", "ridge_penalty=1 problem=sparse-logistic", "ridge_penalty", "problem=ridge"),
    _of("mtcd", "hidden_size=8", "hidden_size", "problem=network"),
    _of("mtcd", "edge_probability=0.9", "edge_probability", "erdos-renyi"),
    _of("mtcd", "compression_ratio=0.5", "compression_ratio", "compression=top-k"),
    _of("mtcd", "compression_ratio=0.5 compression=quantise", "compression_ratio", "compression=top-k"),
    _of("mtcd", "clip_norm=2", "clip_norm", "another noise"),
    _of("mtcd", "noise_multiplier=2", "noise_multiplier", "another noise"),
    _of("mtcd", "dcpa_dual_step=0.1", "dcpa_dual_step", "algorithm=dcpa"),
    _of("mtcd", "secure_range=5", "secure_range", "secure_aggregation=true"),
    _of("mtcd", "decay_every=3", "decay_every", "schedule=step"),
    _of("glasu", "num_heads=2", "num_heads", "backbone=gat"),
    _of("glasu", "alpha=0.5 backbone=gcn", "alpha", "backbone=gcnii"),
    _of("glasu", "secure_range=5", "secure_range", "secure_aggregation=true"),
    _of("glasu", "delta=0.1", "delta", "another noise_multiplier"),
    _of("pubsub-vfl", "deadline=3 algorithm=vfl", "deadline", "algorithm=pubsub-vfl"),
    _of("pubsub-vfl", "push_every=3", "push_every", "algorithm=avfl-ps"),
    _of("pubsub-vfl", "clip_norm=3", "clip_norm", "another privacy_mu or another embedding_mu"),
    _of("pubsub-vfl", "gradient_clip_norm=3", "gradient_clip_norm", "another gradient_mu"),
    _of("pubsub-vfl", "bottom_mu=3", "bottom_mu", "bottom_training=private"),
    _of("tablepuppet", "learning_rate=3", "learning_rate", "rfl-sgd-v"),
    _of("tablepuppet", "rho=3 algorithm=rfl-sgd", "rho", "rfl-admm-v"),
    _of("tablepuppet", "local_epochs=3", "local_epochs", "admm=paper_sgd"),
    _of("tablepuppet", "hidden_size=3", "hidden_size", "model=neural"),
    _of("tablepuppet", "clip=3", "clip", "another feature_dp"),
    _of("tablepuppet", "inner_rounds=3", "inner_rounds", "algorithm=rfl-admm"),
    # tablepuppet
    _of("tablepuppet", "join_by=tree algorithm=rfl-sgd-v", "join_by", "algorithm=rfl-sgd-v"),
    _of("tablepuppet", "threads=1000000", "threads", "1000000"),
    _of("tablepuppet", "memory_limit=0KB", "memory_limit", "0KB"),
    _of("tablepuppet", "memory_limit=1KB", "memory_limit"),
    _of("tablepuppet", "memory_limit=...GB", "memory_limit"),
    _of("tablepuppet", "memory_limit=1.2.3GB", "memory_limit"),
    _of("tablepuppet", "memory_limit=-1GB", "memory_limit"),
    _of("tablepuppet", "memory_limit=tiny", "memory_limit"),
    _of("tablepuppet", "memory_limit=99999999999999999999TB", "memory_limit"),
    _of("tablepuppet", "algorithm=rfl-sgd-v learning_rate=1e30", "learning_rate", "1e+30"),
    _of(
        "tablepuppet",
        "algorithm=rfl-sgd-v learning_rate=1e15 num_rounds=30 task=regression batch_size=100",
        "learning_rate: 1e+15 diverges",
        later=True,
    ),
    _of(
        "tablepuppet",
        "algorithm=rfl-sgd learning_rate=1e15 num_rounds=30 task=regression batch_size=100",
        "learning_rate: 1e+15 diverges",
        later=True,
    ),
    _of(
        "tablepuppet",
        "algorithm=vfl-sgd learning_rate=1e15 num_rounds=30 task=regression batch_size=100",
        "learning_rate: 1e+15 diverges",
        later=True,
    ),
    _of(
        "tablepuppet",
        "admm=paper_sgd local_learning_rate=1e15 num_rounds=9 task=regression",
        "local_learning_rate: 1e+15 diverges",
        later=True,
    ),
    _of(
        "tablepuppet",
        "algorithm=centralised centralised=sgd learning_rate=1e15 num_rounds=30 task=regression batch_size=100",
        "learning_rate: 1e+15 diverges",
        later=True,
    ),
    _of("tablepuppet", "rho=1e-300", "rho"),
    _of("tablepuppet", "rho=1e300", "rho"),
    _of("tablepuppet", "inner_rho=1e300 algorithm=rfl-admm", "inner_rho"),
    _of("tablepuppet", "beta=1e300 algorithm=rfl-sgd-v num_rounds=3", "beta"),
    _of("tablepuppet", "local_weight_decay=1e300 admm=paper_sgd num_rounds=3", "local_weight_decay"),
    _of("tablepuppet", "hidden_size=1000000000 model=neural", "hidden_size"),
    _of("tablepuppet", "num_partitions=1000000", "num_partitions"),
    _of("tablepuppet", "num_classes=1000000000000 task=multiclass", "num_classes"),
    _of("tablepuppet", "server_in=shops", "server_in", "'shops'"),
    _of("tablepuppet", "feature_dp=1", "feature_dp"),
    _of("tablepuppet", "feature_dp=1 algorithm=centralised", "feature_dp"),
    _of("tablepuppet", "feature_dp=1e-300 algorithm=rfl-sgd-v", "feature_dp"),
    _of("tablepuppet", "feature_dp=inf algorithm=rfl-sgd-v", "feature_dp"),
    _of("tablepuppet", "label_dp=inf", "label_dp"),
    _of("tablepuppet", "label_dp=1e300 task=regression label_range=0,1", "label_dp"),
    _of("tablepuppet", "label_dp=0.5 task=regression", "label_range"),
    _of("tablepuppet", "label_range=1,0 task=regression", "label_range"),
    _of("tablepuppet", "label_range=0,inf task=regression", "label_range"),
    _of("tablepuppet", "label_range=1", "label_range"),
    _of("tablepuppet", "clip=inf feature_dp=1 algorithm=rfl-sgd-v", "clip"),
    _of("tablepuppet", "prediction_noise=1", "prediction_noise"),
    _of("tablepuppet", "prediction_noise=inf prediction_clip=1", "prediction_noise"),
    _of("tablepuppet", "test_fraction=0.99999999", "test_fraction"),
    _of("tablepuppet", "model=softmax task=regression", "model"),
    _of("tablepuppet", "rh=1", "rh", "rho"),
]
CASES = [*GENERATED, *WRITTEN]
