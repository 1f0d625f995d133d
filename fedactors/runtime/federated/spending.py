"""What a run takes of the privacy budget of a site's data: announced, measured by the site itself, and charged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from fedactors.errors import Refused
from fedactors.runtime.federated.folders import SiteFolder
from fedactors.runtime.federated.household import Household
from fedactors.runtime.federated.policy import ANY, Amount, as_logged, in_all, taken_by
from fedactors.runtime.federated.proposal import Proposal

_MEASURE_SECONDS = 1.0


class Spending:
    """See the module; all of it does nothing where the site's data have no budget.

    Args:
        folder: of the site.
        proposal: what was approved.
        actors: those that the site hosts in the run.
        refuse: is told that the run took more than it announced, and stops it.
    """

    def __init__(
        self,
        folder: SiteFolder,
        proposal: Proposal,
        actors: Household,
        refuse: Callable[[Refused], Refused],
    ) -> None:
        name = proposal.data.get(folder.name)
        self.measuring = asyncio.Lock()
        """Held while actors account: what they write down then is told apart from what they record by themselves."""
        self._announced = None if name is None or folder.budget(name) is None else proposal.budget[folder.name]
        self._folder = folder
        self._proposal = proposal
        self._actors = actors
        self._refuse = refuse
        self._taken: dict[str, Amount] = {}
        self._is_open = False

    @property
    def is_counted(self) -> bool:
        """Whether the run takes of a budget."""
        return self._announced is not None

    def open(self) -> None:
        """Put the run on record, before anything can leave."""
        self._is_open = True
        if self._announced is not None:
            name = self._folder.name
            facts: dict[str, Any] = {
                "data": self._proposal.data[name],
                "announced": as_logged({ANY: self._announced})[ANY],
            }
            self._folder.audit.add("opened", run=self._proposal.run, **facts)

    async def watch(self) -> None:
        """Measure once a second until the run is closed."""
        while self._announced is not None and self._is_open:
            await asyncio.sleep(_MEASURE_SECONDS)
            with contextlib.suppress(Refused):  # which has stopped the run
                await self.measure()

    def close(self) -> None:
        """Measure no more: the actors have closed."""
        self._is_open = False

    async def measure(self) -> None:
        """Stop the run if the own actors have released more than it announced, by their own account, now."""
        if self._announced is None or not self._is_open:
            return
        me = self._folder.name
        async with self.measuring:
            found = await self._actors.account(me)
        self._taken = taken_by(me, found)
        if not (taken := in_all(self._taken)).within(self._announced):
            said = f"the run took {taken} of the budget of {me} and had announced {self._announced}"
            raise self._refuse(Refused(self._proposal.coordinator, said))

    def charged(self, status: str, *, was_open: bool) -> dict[str, Amount]:
        """Return what counts against the budget: what was measured, and of a run that broke off all it announced."""
        if self._announced is None or not was_open:
            return {}
        is_known = status == "finished" or not in_all(self._taken).within(self._announced)
        return self._taken if is_known else {ANY: self._announced}
