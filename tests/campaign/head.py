"""`ray ARGUMENTS...`, whose cluster's workers are forks of a process that has loaded everything (`forked_workers`).

python -m tests.campaign.head start --head ...
"""

from __future__ import annotations

from functools import partial

import ray._private.parameter as parameter
from ray.scripts.scripts import main

from tests import forked_workers

if __name__ == "__main__":
    parameter.RayParams = partial(parameter.RayParams, setup_worker_path=forked_workers.__file__)  # type: ignore[misc, assignment]
    main()
