import os
from pathlib import Path

import pytest

from tests.databases import postgres  # noqa: F401


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("FEDACTORS_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEDACTORS_DATA names no folder with the real data sets")
    return Path(folder)
