"""A small part of the campaign."""

from __future__ import annotations

import random

import pytest

from tests.campaign.stories import SUBJECTS, Fault, measure_pace, tell


@pytest.mark.walk
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_story_of_the_campaign_ends_well() -> None:
    subject, draw = SUBJECTS["mtcd"], random.Random(3)
    faults = [Fault("kill -9", "driver", 1.5), Fault("kill -9", "actor", 0.6), Fault("kill -9", "GCS", 1.2)]
    rows = list(tell(subject, "stop", faults, measure_pace(subject), draw))
    assert rows, "every start had ended before its fault"
    for row in rows:
        assert row.ended in ("finished", "line", "killed"), row
        assert row.resumed, row
        assert (row.left_processes, row.left_files, row.lost) == (0, 0, ""), row
