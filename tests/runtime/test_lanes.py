"""The ways out of a process: order of calls, and a peer that is not there."""

import asyncio

import pytest

from fedactors.errors import PartyLost
from fedactors.network.codec import decode, encode_parts
from fedactors.runtime.ray.lanes import Address, Lanes
from fedactors.runtime.ray.transport import REPLY, Incoming


def lanes_to(socket) -> Lanes:
    lanes = Lanes("here", True, 5.0)
    lanes.update({"b": Address("b", "server", "here", str(socket), 1, None)})
    return lanes


def test_calls_arrive_in_the_order_in_which_they_are_made_also_while_the_lane_opens(tmp_path):
    arrived: list[int] = []

    async def serve(body):
        arrived.append(decode(body))
        return REPLY, encode_parts(decode(body))

    async def main():
        server = await asyncio.get_running_loop().create_unix_server(lambda: Incoming(serve), str(tmp_path / "lane"))
        lanes = lanes_to(tmp_path / "lane")
        address = lanes.address("b", "a")
        replies = []
        # some before the lane is open, some at the very turns of the loop in which it opens, some after
        for number in range(200):
            replies.append(lanes.send(address, "note", encode_parts(number)))
            if number % 5 == 0:
                await asyncio.sleep(0)
        answers = await asyncio.gather(*replies)
        lanes.close()
        server.close()
        return answers

    assert asyncio.run(main()) == list(range(200))
    assert arrived == list(range(200))


def test_every_call_to_a_peer_that_does_not_listen_says_so(tmp_path):
    async def main():
        lanes = lanes_to(tmp_path / "nobody")
        address = lanes.address("b", "a")
        calls = [lanes.send(address, "note", encode_parts(number)) for number in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        lanes.close()
        return found

    found = asyncio.run(main())
    assert [type(error) for error in found] == [PartyLost] * 3
    assert "does not answer" in str(found[0])
    with pytest.raises(PartyLost, match="b"):
        raise found[2]
