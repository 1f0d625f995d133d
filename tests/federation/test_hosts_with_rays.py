"""All protocols between three sites, each in a network namespace of its own and each with a Ray of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.federation.apart import PROTOCOLS, WHY_NOT, Apart, check_as_simulated, check_centers, on_three_hosts

pytestmark = [
    pytest.mark.walk,
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(540),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"three hosts cannot be made here: {WHY_NOT}"),
    pytest.mark.drawn(1, family="hosts", of=12),
]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    with on_three_hosts(tmp_path_factory.mktemp("rays"), with_rays=True) as made:
        yield made


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_a_ray_per_site_a_protocol_gives_what_the_simulated_run_gives(
    apart: Apart, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    check_as_simulated(apart, capsys, protocol)


def test_with_a_ray_per_site_centers_rotate_their_models(apart: Apart) -> None:
    check_centers(apart)
