import pytest

from fedactors.testing.conformance import check_protocol
from tests.testing.sound import SOUND

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_protocol_has_no_remark(name):
    check_protocol(SOUND[name], on_ray=False)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["transfer", "averaging"])
def test_nor_on_ray(name):
    check_protocol(SOUND[name])
