"""What a process imports for its first gradient and its first metrics, it imports while it loads: no clock runs yet."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, traceback

late = []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if "." not in name and any(f.name == "compute" for f in traceback.extract_stack()):
            late.append(name)

sys.meta_path.insert(0, Watch())
from fedactors.cli.main import main

try:
    main(["run", "pubsub-vfl", "--smoke", "--runtime", "simulated", "--quiet", "--data", "criteo-like"])
except SystemExit as end:
    assert not end.code, end.code
assert "sympy" in sys.modules, "torch needs other libraries now"
print("late:", sorted({"sklearn", "scipy", "sympy", "torch", "networkx"}.intersection(late)))
"""


@pytest.mark.slow
def test_no_step_of_a_run_waits_for_a_library(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "late: []"
