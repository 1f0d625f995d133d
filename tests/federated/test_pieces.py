"""What is cut into pieces is put together again, however it arrives."""

from __future__ import annotations

import random

import pytest

from fedactors.runtime.federated.pieces import HEAD, PIECE_BYTES, REPLY, Broken, PieceReader, pieces_of

SIZES: tuple[tuple[bytes | int, ...], ...] = (
    *((), (b"",), (b"a", b"", b"bc"), (1,), (PIECE_BYTES,), (PIECE_BYTES + 1,), (10, PIECE_BYTES, PIECE_BYTES - 10)),
    *((3, 2 * PIECE_BYTES, 5), (PIECE_BYTES // 2,) * 5, (2 * PIECE_BYTES, b"")),
)


def made(sizes: tuple[bytes | int, ...]) -> list[bytes | memoryview]:
    rng = random.Random(0)
    return [size if isinstance(size, bytes) else rng.randbytes(size) for size in sizes]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_only_the_last_piece_is_short_and_nothing_is_lost(sizes: tuple[bytes | int, ...]) -> None:
    parts = made(sizes)
    pieces = list(pieces_of(parts))
    assert [more for _, more in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(sum(map(len, piece)) == PIECE_BYTES for piece, more in pieces if more)
    assert b"".join(b"".join(piece) for piece, _ in pieces) == b"".join(parts)
    assert sum(map(len, pieces[-1][0])) > 0 or len(pieces) == 1


@pytest.mark.parametrize("most", [1, 7, 5000, 64 * 1024, 256 * 1024, 1 << 20])
def test_pieces_are_the_same_however_their_bytes_arrive(most: int) -> None:
    rng = random.Random(most)
    large = PIECE_BYTES if most > 100 else 300
    bodies = [rng.randbytes(rng.randrange(large)) for _ in range(12)]
    wanted = [(rng.randrange(3), rng.random() < 0.5, number, body) for number, body in enumerate(bodies)]
    wanted[5] = (REPLY, False, 5, b"")
    stream = b"".join(HEAD.pack(len(body), kind, more, number) + body for kind, more, number, body in wanted)
    reader, kept, found, buffer = PieceReader(), [], [], bytearray(most)
    at = 0
    while at < len(stream):
        size = min(rng.randint(1, most), len(stream) - at)
        buffer[:size] = stream[at : at + size]
        at += size
        for kind, more, number, body in reader.pieces(memoryview(buffer)[:size]):
            if more:
                kept.append(body)  # which stays as it is when the buffer is filled anew
            found.append((kind, more, number, body if more else bytes(body)))
        buffer[:] = bytes(most)
        assert reader.is_within == (at < len(stream) and at not in _ends(wanted))
    assert found == wanted


def _ends(wanted: list[tuple[int, bool, int, bytes]]) -> set[int]:
    ends, end = set(), 0
    for *_, body in wanted:
        end += HEAD.size + len(body)
        ends.add(end)
    return ends


def test_a_piece_that_is_too_large_is_known_by_its_head() -> None:
    head = HEAD.pack(PIECE_BYTES + 1, REPLY, 0, 1)
    reader = PieceReader()
    assert list(reader.pieces(memoryview(head[:-1]))) == []
    with pytest.raises(Broken, match=f"{PIECE_BYTES + 1} bytes"):
        list(reader.pieces(memoryview(head[-1:])))
