"""Predictions online: parts of a trained model that stay loaded, asked by id over HTTP where the labels are.

    application ──POST /predict {"ids": [...]}──▶ PredictionServer ──▶ Predictor: its rows by id, its model
    Predictor ──alignment once, then positions──▶ Contributions of each other party ──values──▶ Predictor

    who waits            for what                       no longer than
    an application       the other parties' values      `_CALL_SECONDS`; then 503 names the party
    Predictor            a party to come back           nobody: it is dialled again while requests are refused

A whole model (horizontal) needs no other party. Parties of a vertical model may lie in one run's folder, or each at its
site: the other parties' processes are dialled as sites are in a run, by TLS with both certificates. What a party's
model makes of its rows is computed, and noised, once when it begins to serve: asking again draws no new noise. A party
answers one site, up to a number of rows that its person states, and its signed log has what it gave.
It is one file because rows and models, the other parties and the applications that ask are the parts of one service.

Shapes: N rows, n rows of one question, E width of a contribution.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedactors.data.alignment.ids import (
    Alignment,
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    align,
    answer,
    follow,
)
from fedactors.data.columns import encode
from fedactors.data.readers import read_columns
from fedactors.data.values import Column, row_names
from fedactors.errors import BadInput, FedactorsError, PartyLost, Refused
from fedactors.federation.handshake import accept, dial
from fedactors.federation.identity import Member
from fedactors.federation.operations import BoundedServer, Refusal, check_framing
from fedactors.federation.session import (
    AT_ONCE,
    MOST,
    MOST_OF_MEMBER,
    OTHER_FILES,
    PIECE_BYTES,
    Admission,
    Connection,
    Hello,
    Limits,
    LineLimit,
    Traffic,
    allow_files,
    decoded,
    lengthen_queue,
    peer_address,
)
from fedactors.federation.site_folder import SiteFolder
from fedactors.privacy.accounting import NEW_ROW, GaussianReleases, PrivacyRecord
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.runtime.failures import encode_error, errors_for, lasting, unforeseen
from fedactors.serving.parts import Part, TrainedModel, contribution, fused_output, probabilities
from fedactors.validation import first_line, one_line, shown

SERVING = "serve"
MOST_IDS = 1000
"""Of one question."""
MOST_ALIGNMENTS = 10
"""That a party answers while its process lasts: each tells which of the asker's ids it has."""
_CALL_SECONDS, _AWAY_SECONDS = 10.0, 5.0
_AGAIN_SECONDS, _LONGEST_PAUSE = 1.0, 30.0
_LAST_SECONDS = 1.1
"""For connections to say that they close."""
_LIMITS = Limits(call=_CALL_SECONDS, away=_AWAY_SECONDS)
T = TypeVar("T")
Array = NDArray[Any]


# --- rows and models that stay loaded ---


@dataclass(frozen=True, eq=False)
class LoadedModel(TrainedModel):
    """A model whose module is made once."""

    loaded: nn.Module

    def module(self) -> nn.Module:
        """Return the module."""
        return self.loaded


def loaded(part: Part) -> Part:
    """Return a part whose models are made once.

    Raises:
        BadInput: it is no model over the rows of a table.
    """
    if part.preprocessing is None or "bottom" not in part.models:
        raise BadInput(f"serve: the part of {part.party} is no model over rows of a table: use fedactors predict")
    models = {name: LoadedModel(one.spec, one.vector, one.module()) for name, one in part.models.items()}
    return replace(part, models=models)


@dataclass(frozen=True, eq=False)
class RowsById:
    """A party's rows as its model sees them (N, D), by what they are called."""

    ids: Array
    features: Array
    rejections: Mapping[int, str]
    """Why a row cannot be predicted."""

    def __post_init__(self) -> None:
        index = {str(name): row for row, name in enumerate(self.ids.tolist())}
        if len(index) < len(self.ids):
            twice = next(name for row, name in enumerate(map(str, self.ids.tolist())) if index[name] != row)
            raise BadInput(f"--rows: {shown(twice)} is the id of several rows: keep one of each")
        object.__setattr__(self, "row_of", index)

    row_of: Mapping[str, int] = None  # type: ignore[assignment]  # set once the ids are known


def read_rows(part: Part, path: Path, id_column: str | None = None) -> RowsById:
    """Read rows as training encoded them; a row that cannot be used has a reason.

    Args:
        part: whose model sees them.
        path: a CSV, Parquet or npy file.
        id_column: what rows are called by, where training knew of none; None: their numbers.

    Raises:
        BadInput: a column is absent, or an id is of several rows, or missing.
    """
    fitted = part.preprocessing
    assert fitted is not None
    where, known = f"{part.party}: {path}", fitted.id_column if id_column is None else id_column
    names = [] if known is None else [known] if isinstance(known, str) else [*known]
    features = [one.name for one in fitted.columns]
    columns = read_columns(path, part.party, wanted=[*features, *names], csv=fitted.csv)
    if absent := [name for name in (*features, *names) if name not in columns]:
        raise BadInput(
            f"{where}: column {absent[0]!r} is absent: the model was trained on it, or rows are called by it"
        )
    features_ND, rejections = _encoded(part, {name: columns[name] for name in features}, where)
    ids = [str(row) for row in range(len(features_ND))]
    if names:
        ids = row_names([columns[name] for name in names], fitted.id_rules, where)
        if "" in ids:
            raise BadInput(f"{where}: row {ids.index('') + 1} has no {' and '.join(names)!r}")
    return RowsById(np.array(ids), features_ND, rejections)


def _encoded(part: Part, columns: Mapping[str, Column], where: str) -> tuple[Array, dict[int, str]]:
    fitted = part.preprocessing
    assert fitted is not None
    found = encode(columns, fitted.columns, where, new=True, dtype=fitted.dtype)
    rejections = dict(found.rejected)
    if len(part.parties) == 1:  # of a whole model nothing says what stands for a missing number
        for row in np.flatnonzero(~np.isfinite(found.features).all(axis=1)).tolist():
            rejections.setdefault(row, "missing values")
    features = fitted.finish(found.features)
    for row in np.flatnonzero(~np.isfinite(features).all(axis=1)).tolist():
        rejections.setdefault(row, "numbers too large for the model")
    features[list(rejections)] = 0  # nobody reads what becomes of them
    return features, rejections


# --- what another party gives ---


class Contributor(Protocol):
    """Another party, here or at its site."""

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's question about the own ids."""

    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order."""

    async def contribute(self, positions: NDArray[np.int64], salt: bytes) -> tuple[Array, NDArray[np.bool_]]:
        """Return of rows, by their place in the order with this salt, values (n, E), and who cannot be used (n)."""

    @property
    def salt(self) -> bytes:
        """Of the order that the party was told last."""


class Contributions:
    """What a party's model makes of its rows, computed and noised once.

    Args:
        part: the party's.
        rows: its own.
        most_rows: that it gives, each time that it is asked for one counts; None: as many as it is asked for.
        rng: of the noise.
    """

    def __init__(self, part: Part, rows: RowsById, most_rows: int | None, rng: np.random.Generator) -> None:
        if len(part.parties) == 1:
            raise BadInput(f"serve: the part of {part.party} is a whole model: no other party needs what it gives")
        self.part, self.rows = part, rows
        self.most_rows, self.num_given, self.num_alignments, self.num_orders = most_rows, 0, 0, 0
        self._values = contribution(part, rows.features)
        self.privacy: PrivacyRecord | None = None
        """Of one row, however often it is asked for."""
        if part.sigma > 0:
            self._values = clip_and_noise(self._values, part.clip_norm, part.sigma, rng, "Contribution")
            note = "one new row replaced, for as long as the party serves; training rows are not covered"
            made = GaussianReleases(
                "Contribution", clip_norm=part.clip_norm, sigma=part.sigma, delta=part.delta, note=note
            )
            made.add()
            self.privacy = replace(made.record(part.party), neighbour=NEW_ROW)
        self._unusable = np.isin(np.arange(len(rows.ids)), list(rows.rejections))
        self._order, self.salt = np.zeros(0, np.int64), b""

    @property
    def alignment(self) -> Alignment:
        """How rows find each other, as in training."""
        return _alignment(self.part)

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's question, so often."""
        if self.num_alignments >= MOST_ALIGNMENTS:
            raise Refused(self.part.party, f"answered {MOST_ALIGNMENTS} alignments: its person starts it again")
        self.num_alignments += 1
        return await asyncio.to_thread(answer, self.rows.ids, question, self.alignment)

    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order, as often as an alignment may have led to one: it tells which ids are there, too."""
        if self.num_orders >= MOST_ALIGNMENTS:
            raise Refused(self.part.party, f"followed {MOST_ALIGNMENTS} orders: its person starts it again")
        self.num_orders += 1
        self._order = await asyncio.to_thread(follow, self.rows.ids, order, self.alignment)
        self.salt = order.salt

    async def contribute(self, positions: NDArray[np.int64], salt: bytes) -> tuple[Array, NDArray[np.bool_]]:
        """Return the values of rows, while so many may be given; positions of an earlier order mean other rows."""
        if not hmac.compare_digest(salt, self.salt):
            raise Refused(self.part.party, "is asked for rows of an order that is no longer the common one")
        if len(positions) > MOST_IDS or (len(positions) and not 0 <= positions.min() <= positions.max() < self._size):
            raise Refused(self.part.party, "is asked for rows that are not shared, or for too many at once")
        if self.most_rows is not None and self.num_given + len(positions) > self.most_rows:
            said = f"gave {self.num_given} of {self.most_rows} rows: its person starts it with a larger --most-rows"
            raise Refused(self.part.party, said)
        self.num_given += len(positions)
        rows = self._order[positions]
        return self._values[rows], self._unusable[rows]

    @property
    def _size(self) -> int:
        return len(self._order)


def _alignment(part: Part) -> Alignment:
    known = None if part.preprocessing is None else part.preprocessing.alignment
    return "psi" if known is None else known


class Predictor:
    """Answers for ids where the labels are.

    Args:
        part: the label party's, or a whole model.
        rows: its own.
        others: by party, how it is reached; none of a whole model.
    """

    def __init__(self, part: Part, rows: RowsById, others: Mapping[str, Contributor]) -> None:
        wanting = [name for name in part.parties if name not in (part.party, *others)]
        if wanting and len(part.parties) > 1:
            raise BadInput(f"serve: the model needs {', '.join(wanting)} too: give --rows or --from for each")
        self.part, self.rows, self._others = part, rows, dict(others)
        self._names = part.class_names or tuple(map(str, range(max(part.num_classes, 2))))
        self._values = contribution(part, rows.features)
        self._positions = np.arange(len(rows.ids))
        """Of each own row in the common order; -1: not all parties have it."""
        self._absent: dict[int, str] = {}
        self._salt = b""
        """Of the order that the positions are of."""

    @property
    def is_whole(self) -> bool:
        """Whether no other party is asked."""
        return not self._others

    async def prepare(self) -> None:
        """Align the rows of all parties.

        Raises:
            PartyLost, Refused, BadInput: a party is not reached, refuses, or shares no row.
        """
        if self.is_whole:
            return
        rng = np.random.default_rng(secrets.randbits(128))
        common = await align(self.rows.ids, self.part.party, _alignment(self.part), self._others, rng)
        positions = np.full(len(self.rows.ids), -1)
        positions[common.rows] = np.arange(len(common.rows))
        absent = {int(row): name for name, rows in common.absent.items() for row in rows}
        self._positions, self._absent, self._salt = positions, absent, next(iter(self._others.values())).salt

    async def predict(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return an entry for each id: a prediction, or the reason why there is none."""
        rejections: dict[int, str] = {}
        rows = np.array([self.rows.row_of.get(one, -1) for one in ids], np.int64)
        for number, row in enumerate(rows.tolist()):
            if row < 0:
                rejections[number] = "no such row"
            elif row in self.rows.rejections:
                rejections[number] = self.rows.rejections[row]
            elif self._positions[row] < 0:
                rejections[number] = f"not at {self._absent.get(row, 'all parties')}"
        asked = [number for number in range(len(ids)) if number not in rejections]
        values = {self.part.party: self._values[rows[asked]]}
        if asked and not self.is_whole:
            positions, salt = self._positions[rows[asked]], self._salt
            found = await asyncio.gather(*(one.contribute(positions, salt) for one in self._others.values()))
            for name, (theirs, unusable) in zip(self._others, found, strict=True):
                values[name] = theirs
                rejections |= {asked[n]: f"{name} cannot use its row" for n in np.flatnonzero(unusable).tolist()}
        answers = self._answers([values[name] for name in self.part.parties]) if asked else []
        by_number = dict(zip(asked, answers, strict=True))
        return [
            {"id": one, "prediction": None, "reason": rejections[number]}
            if number in rejections
            else {"id": one, **by_number[number]}
            for number, one in enumerate(ids)
        ]

    def predict_rows(self, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Return an entry for each row of a whole model's columns, which come with the question.

        Raises:
            BadInput: a column is absent, or the model is not whole.
        """
        if not self.is_whole or len(self.part.parties) > 1:
            raise BadInput("rows: other parties have no columns of these rows: ask by ids")
        fitted = self.part.preprocessing
        assert fitted is not None
        if absent := [one.name for one in fitted.columns if one.name not in columns]:
            raise BadInput(f"rows: column {absent[0]!r}, which the model was trained on, is absent")
        made = {one.name: Column(one.name, np.asarray(columns[one.name])) for one in fitted.columns}
        features, rejections = _encoded(self.part, made, "rows")
        answers = self._answers([contribution(self.part, features)])
        return [
            {"prediction": None, "reason": rejections[row]} if row in rejections else one
            for row, one in enumerate(answers)
        ]

    def _answers(self, values: Sequence[Array]) -> list[dict[str, Any]]:
        whole = len(self.part.parties) == 1
        try:
            output = values[0] if whole else fused_output(self.part, values)
        except (RuntimeError, ValueError) as error:  # other parties' values are of another width
            others = ", ".join(self._others)
            raise Refused(others, f"gave values that do not fit the model: {first_line(error)}") from None
        found = probabilities(self.part, output)
        return [self._answer(row) for row in found]

    def _answer(self, row: NDArray[np.float64]) -> dict[str, Any]:
        """Return the entry of a row, from the probability of each class, or the value of a regression."""
        if not np.isfinite(row).all():
            return {"prediction": None, "reason": "the model gives no number"}
        if self.part.task == "regression":
            return {"prediction": float(row[0])}
        probability = {name: float(one) for name, one in zip(self._names, row, strict=True)}
        return {"prediction": self._names[int(row.argmax())], "probability": probability}


# --- between sites ---


class RemoteContributor:
    """Another party at its site: its process is dialled, and dialled again when it was away."""

    def __init__(self, folder: SiteFolder, member: Member, model: str) -> None:
        self._folder, self._member, self._model = folder, member, model
        self.name = member.name
        self._connection: Connection | None = None
        self._salt = b""

    async def connect(self) -> None:
        """Dial the process.

        Raises:
            PartyLost, Refused: it is not reached, or does not answer this site.
        """
        hello = Hello(self._folder.federation.name, SERVING, "", self._model)
        name = self._folder.name
        ends = {"serve": None, "lost": lambda *_: None, "errors": lambda error: encode_error(name, error)}
        self._connection = await dial(self._folder, self._member, hello, _LIMITS, **ends)

    async def _ask(self, verb: str, *args: Any) -> Any:
        if self._connection is None or self.is_lost:
            raise PartyLost(self._member.name, f"does not serve at {self._member.where}: there: fedactors serve --for")
        return await self._connection.ask((verb, *args), verb)

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Ask which of the own ids the party has; how many parts belong to the answer `align` checks."""
        match await self._ask("answer_alignment", question.how, question.content):
            case (tuple(parts), np.ndarray() as digests) if all(type(part) is bytes for part in parts):
                if digests.dtype == np.uint8 and digests.ndim == 2 and digests.shape[1] == 32:
                    return AlignmentAnswer(parts, digests)
        raise Refused(self._member.name, "answers an alignment with something else")

    async def take_order(self, order: AlignmentOrder) -> None:
        """Tell the common order."""
        await self._ask("take_order", order.salt, order.digests)
        self._salt = order.salt

    async def contribute(self, positions: NDArray[np.int64], salt: bytes) -> tuple[Array, NDArray[np.bool_]]:
        """Ask for the values of rows."""
        match await self._ask("contribute", positions, salt):
            case (np.ndarray() as values, np.ndarray() as unusable) if _are_values(values, unusable, len(positions)):
                return values, unusable
        raise Refused(self._member.name, "answers with values of other rows, or with invalid ones")

    @property
    def salt(self) -> bytes:
        """Of the order that the party was told last."""
        return self._salt

    @property
    def is_lost(self) -> bool:
        """Whether the connection is no more."""
        return self._connection is None or self._connection.is_closed

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _are_values(values: Array, unusable: Array, count: int) -> bool:
    is_matrix = values.ndim == 2 and values.dtype in (np.float32, np.float64) and unusable.dtype == np.bool_
    return is_matrix and len(values) == count and unusable.shape == (count,) and bool(np.isfinite(values).all())


class ContributionServer:
    """A party's process that answers one other site.

    Args:
        folder: of this site.
        given: what it gives.
        to: the site that may ask.
        model: which model this is of; the asker must have the same.
        tell: takes a line for people.
    """

    def __init__(
        self, folder: SiteFolder, given: Contributions, to: str, model: str, tell: Callable[[str], None]
    ) -> None:
        if to not in folder.federation.members or to == folder.name:
            known = ", ".join(sorted(set(folder.federation.members) - {folder.name}))
            raise BadInput(f"--for: {shown(to)} is not allowed: one of {known}")
        self._folder, self._given, self._to, self._model, self._tell = folder, given, to, model, tell
        self._links: dict[tuple[str, str], Connection] = {}
        self._server: asyncio.Server | None = None
        self._num_refused = 0
        self._unknown_peers = Admission(self._say_refused)
        self._members: defaultdict[str, Admission] = defaultdict(lambda: Admission(self._say_refused, MOST_OF_MEMBER))
        """By site: no other one's refusals hide those of one."""
        self._next_count = 1

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. The site's signed log has what is given to whom, first.

        Raises:
            BadInput: nobody may listen there.
        """
        allow_files(MOST + MOST_OF_MEMBER + OTHER_FILES)
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=2 * PIECE_BYTES, backlog=AT_ONCE)
            lengthen_queue(self._server.sockets)
        except OSError as error:
            raise BadInput(f"--listen: {host}:{port} cannot be listened at: {error.strerror or error}") from None
        given, privacy = self._given, self._given.privacy
        facts = {"model": self._model, "to": self._to, "rows": len(given.rows.ids), "most_rows": given.most_rows}
        cost = {} if privacy is None else {"epsilon": privacy.epsilon, "delta": privacy.delta}
        self._folder.audit.add("serving", **facts, **cost)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """End, and write to the signed log what was given."""
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.close()
        self._log_counts("served")

    def _log_counts(self, what: str) -> None:
        facts = {"given": self._given.num_given, "alignments": self._given.num_alignments}
        self._folder.audit.add(what, model=self._model, to=self._to, **facts, refused=self._num_refused)

    def _counted(self) -> None:
        """Write down what was given and refused whenever it has doubled: a process that is killed writes no end."""
        count = self._given.num_given + self._num_refused
        if count >= self._next_count:
            self._next_count = 2 * count
            self._log_counts("served_so_far")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        abort = writer.transport.abort
        admission, host = self._unknown_peers, peer_address(writer)[0]
        pending = admission.comes(f"somebody at {host}", abort)

        def known(peer: str) -> None:
            nonlocal admission, pending
            admission.goes(pending)
            admission = self._members[peer]
            pending = admission.comes(peer, abort)

        def refused(who: str, why: str) -> None:
            if not pending.is_dropped:
                self._refused(who, why)

        try:
            await accept(self._folder, reader, writer, _LIMITS, self._links, self._welcome, refused, known)
        finally:
            admission.goes(pending)
        for key in [key for key, link in self._links.items() if link.is_closed]:
            del self._links[key]

    def _refused(self, who: str, why: str) -> None:
        self._num_refused += 1
        is_member = who in self._folder.federation.members
        (self._members[who] if is_member else self._unknown_peers).refused(who, why)
        self._counted()

    def _say_refused(self, who: str, why: str) -> None:
        self._tell(f"refused: {one_line(who)}: {one_line(why)}")

    def _welcome(self, peer: str, hello: Hello) -> dict[str, Any]:
        if peer != self._to or hello.purpose != SERVING:
            raise Refused(peer, f"asks {self._folder.name}, which answers {self._to} alone, and for predictions only")
        if not hmac.compare_digest(hello.assignment.encode(), self._model.encode()):
            raise Refused(peer, f"has another model or checkpoint than {self._folder.name}: serve the same run at both")
        for link in self._links.values():  # of a process that was there before: an order is of one asker
            link.close()
        errors = errors_for(self._folder.name, peer)
        ends = {"serve": self._serve, "lost": lambda *_: None, "errors": errors, "traffic": Traffic()}
        return {**ends, "name": SERVING}

    async def _serve(self, body: memoryview) -> Any:
        given, peer = self._given, self._to
        try:
            federation = self._folder.federation
            if peer not in federation.members:
                raise Refused(peer, f"is no site of {federation.name} any more")
            shown_by = [link.certificate for link in self._links.values() if not link.is_closed]
            if not set(shown_by) <= set(federation.members[peer].fingerprints):
                raise Refused(peer, "shows a certificate that holds no longer: it opens its link anew")
            match await decoded(body, peer):
                case ("answer_alignment", str(how), bytes(content)):
                    found = await given.answer_alignment(AlignmentQuestion(how, content))
                    return tuple(found.parts), found.digests
                case ("take_order", bytes(salt), np.ndarray() as digests) if (
                    digests.dtype == np.uint8 and digests.ndim == 2 and digests.shape[1] == 32
                ):
                    await given.take_order(AlignmentOrder(salt, digests, np.zeros(0, np.uint8)))
                    return None
                case ("contribute", np.ndarray() as positions, bytes(salt)) if (
                    positions.dtype == np.int64 and positions.ndim == 1
                ):
                    values = await given.contribute(positions, salt)
                    self._counted()
                    return values
            raise Refused(peer, "asks an invalid question in a prediction")
        except Refused as error:
            self._refused(peer, error.message)
            raise


# --- over HTTP ---


class PredictionServer(BoundedServer):
    """Answers applications of the label party.

    Args:
        predictor: that answers.
        address: where it listens.
        token: which each request has (``Authorization: Bearer TOKEN``).
        call: runs a coroutine where the other parties' connections are, and returns its result.
        log: takes an object for each request: its time, how many ids, how many were predicted, milliseconds.
        tell: takes a line for people.
    """

    def __init__(
        self,
        predictor: Predictor,
        address: tuple[str, int],
        token: str,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        log: Callable[[dict[str, Any]], None],
        tell: Callable[[str], None] = print,
    ) -> None:
        super().__init__(address, PredictionHandler, "--listen")
        self.predictor, self.token, self.call, self._log, self.tell = predictor, token, call, log, tell
        self.is_ready = predictor.is_whole
        """Whether all parties are reached and their rows aligned."""
        self._counting = threading.Lock()
        self._counts = dict.fromkeys(("requests", "ids", "predicted", "refused"), 0)
        self._milliseconds: deque[float] = deque(maxlen=10_000)
        self._lines = LineLimit()
        """Of requests that are not answered: anyone who reaches the port sends as many as they like."""

    def failed(self, error: Exception) -> None:
        """Say that a request failed here."""
        with self._counting:
            may_tell = self._lines.take()
        if may_tell:
            self.tell(f"a request failed: {type(error).__name__}: {first_line(error)}")

    def count(self, status: int, num_ids: int, num_predicted: int, milliseconds: float) -> None:
        """Count a request, and write it down without its ids."""
        with self._counting:
            self._counts["requests"] += 1
            self._counts["ids"] += num_ids
            self._counts["predicted"] += num_predicted
            self._counts["refused"] += status != HTTPStatus.OK
            if status == HTTPStatus.OK:
                self._milliseconds.append(milliseconds)
            elif not self._lines.take():
                return
            facts = {"status": int(status), "ids": num_ids, "predicted": num_predicted}
            self._log({"time": time.time(), **facts, "ms": round(milliseconds, 3)})

    @property
    def counts(self) -> dict[str, int]:
        """How many requests and ids came, how many were predicted, and how many requests refused."""
        with self._counting:
            return dict(self._counts)

    def status(self) -> dict[str, Any]:
        """Return what was counted, and how long answers took, of the last 10,000."""
        with self._counting:
            taken, counts = np.array(self._milliseconds), dict(self._counts)
        quantiles = np.quantile(taken, (0.5, 0.99)).round(3).tolist() if len(taken) else [None, None]
        part = self.predictor.part
        facts = {"party": part.party, "parties": list(part.parties), "rows": len(self.predictor.rows.ids)}
        return {**facts, "ready": self.is_ready, **counts, "p50_ms": quantiles[0], "p99_ms": quantiles[1]}


class PredictionHandler(BaseHTTPRequestHandler):
    """One connection of an application."""

    server: PredictionServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedactors", ""
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    timeout = 60.0
    error_message_format, error_content_type = '{"error": "%(code)d"}\n', "application/json"
    _is_unread = False
    """Whether the request may have a body that nobody has read."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing here: `PredictionServer.count` does."""

    def do_GET(self) -> None:
        """Say what was answered so far."""
        self._guarded(self._status)

    def do_POST(self) -> None:
        """Answer a question."""
        begun = time.perf_counter()
        num_ids, entries = 0, []

        def work() -> Any:
            nonlocal num_ids, entries
            if self.path != "/predict":
                raise Refusal(HTTPStatus.NOT_FOUND, "POST /predict, or GET /status")
            question = self._question()
            num_ids = len(question) if isinstance(question, list) else len(next(iter(question.values())))
            if not self.server.is_ready:
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the other parties are not reached yet: ask again")
            predictor = self.server.predictor
            if isinstance(question, dict):
                entries = predictor.predict_rows(question)
            else:
                entries = self.server.call(predictor.predict(question))
            return {"predictions": entries}

        status = self._guarded(work)
        num_predicted = sum(one["prediction"] is not None for one in entries)
        self.server.count(status, num_ids, num_predicted, (time.perf_counter() - begun) * 1e3)

    def _status(self) -> Any:
        if self.path != "/status":
            raise Refusal(HTTPStatus.NOT_FOUND, "POST /predict, or GET /status")
        return self.server.status()

    def _guarded(self, work: Callable[[], Any]) -> int:
        self._is_unread = True
        try:
            self._check()
            with self.server.heard(self.connection, self.client_address):  # until all of the answer is sent
                self._send(HTTPStatus.OK, work())
                return int(HTTPStatus.OK)
        except Refusal as refusal:
            status, found = refusal.status, {"error": str(refusal)}
        except BadInput as error:
            status, found = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except (FedactorsError, TimeoutError) as error:  # another party: lost, late, or it refuses
            status, found = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error) or "the other parties are late"}
        except OSError:
            raise
        except Exception as error:
            self.server.failed(error)
            said = f"{type(error).__name__}: see the log of fedactors serve"
            status, found = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": said}
        self._send(status, found)
        return int(status)

    def _check(self) -> None:
        check_framing(self.headers)
        self._is_unread = self.command == "POST" or self.headers.get("Content-Length", "0") != "0"
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            raise Refusal(HTTPStatus.UNAUTHORIZED, "Authorization: Bearer TOKEN is missing or wrong")

    def _question(self) -> list[str] | dict[str, list[Any]]:
        """Return the ids, or the columns, of a question."""
        length = self.headers.get("Content-Length", "")
        is_json = self.headers.get_content_type() == "application/json"
        if not is_json or not re.fullmatch(r"[0-9]{1,8}", length) or int(length) > _MOST_BODY:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"give JSON of a known length, at most {_MOST_BODY} bytes")
        body = self.rfile.read(int(length))
        self._is_unread = False
        try:
            found = json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise Refusal(HTTPStatus.BAD_REQUEST, "this is no JSON") from None
        match found:
            case {"ids": [*ids], **others} if not others and 0 < len(ids) <= MOST_IDS:
                if all(type(one) is str for one in ids):
                    return ids
            case {"rows": dict(columns), **others} if not others and _are_columns(columns):
                return columns
        raise Refusal(HTTPStatus.BAD_REQUEST, f'give {{"ids": ["a", "b"]}}, or {{"rows": {{"column": [1, 2]}}}}; '
                      f"from 1 to {MOST_IDS} of them")  # fmt: skip

    def _send(self, status: int, found: Any) -> None:
        if self._is_unread:  # what is left of it would be taken for the next request
            self.close_connection = True
        body = json.dumps(found).encode() + b"\n"
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


_MOST_BODY = 1 << 20


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _are_columns(found: dict[str, Any]) -> bool:
    return all(map(_is_column, found.values())) and len({len(one) for one in found.values()}) == 1


def _is_column(found: Any) -> bool:
    if not isinstance(found, list) or not 0 < len(found) <= MOST_IDS:
        return False
    kinds = {str if isinstance(one, str) else float if type(one) in (int, float) else None for one in found}
    return len(kinds) == 1 and None not in kinds


# --- all of it ---


class Loop:
    """An event loop in a thread: where the other parties' connections live."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], seconds: float | None = _CALL_SECONDS + 5) -> T:
        """Do something there and return what it gives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin something there."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End it, once connections that are closing have said so."""

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(_LAST_SECONDS)

        with contextlib.suppress(TimeoutError):
            self.call(end(), 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()


async def keep_ready(
    server: PredictionServer, others: Sequence[RemoteContributor], tell: Callable[[str], None]
) -> None:
    """Reach the other parties and align with them, and again whenever one was lost; requests are refused meanwhile."""
    said, pause = "", _AGAIN_SECONDS
    while True:
        if any(one.is_lost for one in others):
            server.is_ready = False
        if not server.is_ready:
            try:
                for one in others:
                    one.close()
                    await one.connect()
                await server.predictor.prepare()
                server.is_ready, said, pause = True, "", _AGAIN_SECONDS
                tell("ready: the rows of all parties are aligned")
            except Exception as error:  # whatever the other parties answer, they are asked again
                pause = min(2 * pause, _LONGEST_PAUSE)
                if (why := str(error) if isinstance(error, FedactorsError) else unforeseen(error)) != said:
                    said = why
                    tell(said)
        await asyncio.sleep(pause)


@contextlib.contextmanager
def predictions(
    parts: Mapping[str, Part],
    rows: Mapping[str, Path],
    address: tuple[str, int],
    token: str,
    *,
    id_column: str | None = None,
    remote: Sequence[RemoteContributor] = (),
    tell: Callable[[str], None] = print,
    log: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Iterator[PredictionServer]:
    """Answer applications of the label party while the block lasts.

    Args:
        parts: of the model, by party: the label party's, and those of others whose rows are here.
        rows: file of each.
        address: where applications ask.
        token: that they have.
        id_column: see `read_rows`.
        remote: the other parties at their sites.
        tell: takes a line for people.
        log: see `PredictionServer`.

    Raises:
        BadInput: rows cannot be read, a party is missing, or nobody may listen there.
    """
    first = next(iter(parts.values()))
    name = first.party if len(first.parties) == 1 else first.parties[0]
    if name not in parts:
        raise BadInput(f"serve: {name} has the labels, and its part is not here: give --for {name}")
    made = {one: loaded(part) for one, part in parts.items()}
    found = {one: read_rows(made[one], path, id_column) for one, path in rows.items()}
    if missing := [one for one in made if one not in found]:
        raise BadInput(f"--rows: missing for {', '.join(missing)}")
    rng = np.random.default_rng(secrets.randbits(128))
    here: dict[str, Contributor] = {one: Contributions(made[one], found[one], None, rng) for one in made if one != name}
    predictor = Predictor(made[name], found[name], here | {one.name: one for one in remote})
    loop = Loop()
    try:
        server = PredictionServer(predictor, address, token, loop.call, log, tell)
        with server.answering():
            if remote:
                loop.begin(lasting(partial(keep_ready, server, remote, tell), tell))
            elif not server.is_ready:
                loop.call(predictor.prepare(), None)
                server.is_ready = True
            yield server
    finally:

        async def close() -> None:
            for one in remote:
                one.close()

        loop.call(close())
        loop.stop()


@contextlib.contextmanager
def contributions(
    folder: SiteFolder,
    part: Part,
    data: str,
    address: tuple[str, int],
    *,
    to: str,
    model: str,
    most_rows: int,
    tell: Callable[[str], None] = print,
) -> Iterator[tuple[int, Contributions]]:
    """Answer the label party's site while the block lasts; yield the port, and what is given.

    Raises:
        BadInput: the rows cannot be read, no such site, or nobody may listen there.
    """
    if part.parties[0] != to:
        raise BadInput(f"--for: {shown(to)} is not allowed: {part.parties[0]} has the labels of this model")
    made = loaded(part)
    rng = np.random.default_rng(secrets.randbits(128))
    given = Contributions(made, read_rows(made, folder.rows_file(data)), most_rows, rng)
    server, loop = ContributionServer(folder, given, to, model, tell), Loop()
    try:
        yield loop.call(server.start(*address)), given
    finally:

        async def stop() -> None:
            server.stop()

        loop.call(stop())
        loop.stop()
