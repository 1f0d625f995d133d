"""What the experiments on privacy share: their table, and settings whose budget holds."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import Study

SCALE_MU = 0.25
BASE: dict[str, Any] = {"num_layers": 1, "hidden_size": 32, "embedding_size": 8, "batch_size": 256}
DEEP = {"num_layers": 2}


class PrivacyStudy(Study):
    """Rows of its own table, which no other script writes."""

    @property
    def table(self) -> Path:
        """The table that rows are read from and written into."""
        return self.out / "pubsub_vfl_privacy.parquet"


def frozen(mu: float) -> dict[str, Any]:
    """Return settings under which a passive row costs `mu` in all, with a bottom that is never trained."""
    rest = math.sqrt(mu**2 - SCALE_MU**2)
    scale = {"standardisation": "private", "standardisation_mu": SCALE_MU}
    return {**BASE, **scale, "bottom_training": "frozen", "embedding_mu": rest}


def private(mu: float) -> dict[str, Any]:
    """Return settings under which a passive row costs `mu` in all, half of the rest's square for the bottom."""
    rest = math.sqrt((mu**2 - SCALE_MU**2) / 2)
    scale = {"standardisation": "private", "standardisation_mu": SCALE_MU}
    return {**BASE, **DEEP, **scale, "bottom_training": "private", "embedding_mu": rest, "bottom_mu": rest}
