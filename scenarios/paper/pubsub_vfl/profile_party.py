"""Writes one party's profile for `fedactors plan pubsub-vfl --profile active.json passive.json` (Figure 8, Table 8).

Each party runs it on its own machine, over its own data; the file holds fitted constants and how many rows train.
Usage: python scenarios/paper/pubsub_vfl/profile_party.py --data bank --party active --out DIR [key=value ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from fedactors.config import build, parse_words
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.pubsub_vfl.profiler import profile_machine


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", default="breast-cancer")
    flags.add_argument("--party", default="active")
    flags.add_argument("--cores", type=int, help="cores that the party will give (default: all)")
    flags.add_argument("--out", type=Path, help="folder for PARTY.json (default: standard output only)")
    flags.add_argument("--smoke", action="store_true", help="two repetitions")
    flags.add_argument("words", nargs="*", metavar="key=value")
    given = flags.parse_intermixed_args()
    config = build(PubSubVflConfig, {**PUBLISHED, **parse_words(given.words)})
    data = load_data(config, given.data, 0)
    block, repetitions = data.load(given.party), 2 if given.smoke else 10
    made = profile_machine(config, data.part(given.party), block.features.shape[1], given.cores, repetitions)
    train = (1 - config.test_fraction) * (1 - config.validation_fraction)
    values = {**dataclasses.asdict(made), "num_rows": round(len(block.ids) * train)}
    text = json.dumps(values, indent=1)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / f"{given.party}.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
