"""Functions that tests of sweeps call in other processes."""

import os
import signal
import time


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def die_at_two(number: int) -> int:
    """Return the number's double, but be killed by 2."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return double(number)


def refuse(number: int) -> int:
    """Raise."""
    raise ValueError(f"{number} is not liked")


def where(number: int) -> int:
    """Return this process's id, after a while."""
    time.sleep(0.05)
    return os.getpid()
