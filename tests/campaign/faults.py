"""What happens to a run between sites: each fault strikes, holds for some seconds, and is mended."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tests.federation.world import SHOP

if TYPE_CHECKING:
    from tests.campaign.forks import Forked
    from tests.campaign.sites import Sites

Processes = Sequence["Forked"]


@dataclass(frozen=True)
class Fault:
    """What is mended of every fault: who ended is started again."""

    name: str
    target: str
    """A site, ``driver``, or ``coordinator``: the driver and its site."""
    seconds: float = 3.0
    """For how long it holds."""
    needs: ClassVar[str] = ""
    """What a machine may lack: ``disk`` or ``clock``."""

    def strike(self, sites: Sites, processes: Processes) -> None:
        """Let it happen."""
        raise NotImplementedError

    def mend(self, sites: Sites, processes: Processes) -> None:
        """Undo what a restart does not."""


@dataclass(frozen=True)
class Signal(Fault):
    """A signal that ends processes, or a kill."""

    signal: int = signal.SIGKILL

    def strike(self, sites: Sites, processes: Processes) -> None:
        for process in processes:
            process.send_signal(self.signal)


@dataclass(frozen=True)
class Stop(Fault):
    """Processes stand still, and continue."""

    def strike(self, sites: Sites, processes: Processes) -> None:
        for process in processes:
            process.send_signal(signal.SIGSTOP)

    def mend(self, sites: Sites, processes: Processes) -> None:
        for process in processes:
            process.send_signal(signal.SIGCONT)


@dataclass(frozen=True)
class Cut(Fault):
    """The connections of the site break."""

    def strike(self, sites: Sites, processes: Processes) -> None:
        sites.way.cut()


@dataclass(frozen=True)
class Away(Cut):
    """The connections of the site break, and nobody can dial it."""

    def strike(self, sites: Sites, processes: Processes) -> None:
        sites.way.is_closed = True
        super().strike(sites, processes)

    def mend(self, sites: Sites, processes: Processes) -> None:
        sites.way.is_closed = False


@dataclass(frozen=True)
class Slow(Fault):
    """The link of the site has 6 kB/s, and a latency of .3 s."""

    def strike(self, sites: Sites, processes: Processes) -> None:
        sites.way.pace = 0.3, 6000.0

    def mend(self, sites: Sites, processes: Processes) -> None:
        sites.way.pace = None


@dataclass(frozen=True)
class Full(Fault):
    """No byte is free where the site has its folder, or the driver its run folders."""

    needs: ClassVar[str] = "disk"

    def strike(self, sites: Sites, processes: Processes) -> None:
        sites.disks[self.target].fill()

    def mend(self, sites: Sites, processes: Processes) -> None:
        sites.disks[self.target].empty()


@dataclass(frozen=True)
class Later(Signal):
    """The site is killed; it is started again when the clocks of all show so many hours more."""

    hours: float = 6.0
    needs: ClassVar[str] = "clock"

    def mend(self, sites: Sites, processes: Processes) -> None:
        sites.advance(self.hours)


def faults(away: float) -> tuple[Fault, ...]:
    """Return all, in their order.

    Args:
        away: seconds that sites wait for one that is away.
    """
    gone, frozen = 1.5 * away, away + 25.0  # a site that is silent counts as away after 20 s
    return (
        Signal("kill -9", SHOP), Signal("kill -9", "coordinator"), Later("kill -9, back hours later", SHOP),
        Full("disk full", SHOP, 5.0), Slow("slow", SHOP, 12.0), Stop("stop for long", SHOP, frozen), Cut("cut", SHOP),
        Full("disk full", "driver", 5.0), Signal("kill -9", "bank"), Away("away", SHOP, gone),
        Signal("kill -9", "driver"), Full("disk full", "bank", 5.0), Stop("stop for long", "bank", frozen),
        Signal("terminate", SHOP, signal=signal.SIGTERM), Signal("terminate", "coordinator", signal=signal.SIGTERM),
        Stop("stop", SHOP), Stop("stop", "driver"), Signal("terminate", "driver", signal=signal.SIGTERM),
        Signal("hang up", "driver", signal=signal.SIGHUP), Signal("interrupt", "driver", signal=signal.SIGINT),
    )  # fmt: skip
