"""`fedactors ARGUMENTS...`, which also tells a file the kind and the process of each actor, as soon as they are known.

python -m tests.campaign.driver FILE run pubsub-vfl ...
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedactors import launch
from fedactors.cli.main import main
from fedactors.cli.terminal import end_process

START_SECONDS = 90.0
"""Within which a process must be up, of which no sign of life came yet: half of what a run gives it."""


def tell(runtime: Any, file: Path) -> None:
    """Write {actor: [kind, process id]} whenever it changes."""
    known: dict[str, Any] = {}
    while True:
        found = {n: [runtime._actor_specs[n].cls.__name__, pid] for n, pid in dict(runtime.processes).items()}
        if found != known:
            known = found
            file.with_suffix(".half").write_text(json.dumps(found))
            os.replace(file.with_suffix(".half"), file)
        time.sleep(0.02)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where it hangs, should it hang
    file, make_runtime = Path(sys.argv[1]), launch.make_runtime

    def made(*args: Any) -> Any:
        runtime: Any = make_runtime(*args)
        runtime._start_timeout = START_SECONDS
        threading.Thread(target=tell, args=(runtime, file), daemon=True).start()
        return runtime

    launch.make_runtime = made  # type: ignore[assignment]
    end_process(main(sys.argv[2:]))
