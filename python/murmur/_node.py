"""A running daemon, as its status page shows it."""

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ._errors import MurmurError, NotRunning
from ._records import Record

#: Seconds: a daemon on this machine answers at once or not at all.
TIMEOUT = 10.0

#: Seconds for which a daemon is asked to wait for a record.
WAIT = 10

#: Seconds of one point of a curve, finest first, as daemons keep them.
PERIODS = (1.0, 10.0, 300.0)


@dataclass(frozen=True)
class Status:
    """A node at one moment. ``raw`` has everything that ``GET /status`` tells."""

    #: Its peer id.
    peer: str
    #: What its owner calls it.
    name: Optional[str]
    #: The run's id, in short.
    run: str
    #: joining, training, settling, completed, leaving or left.
    phase: str
    #: Own steps.
    steps: int
    #: Swarm progress, in steps.
    progress: float
    #: Training loss of the last steps, in nats per prediction.
    loss: Optional[float]
    #: Loss on the held-out slice at the last evaluation, in nats per prediction.
    validation_loss: Optional[float]
    #: Members connected.
    peers: int
    #: Tokens (bytes of text) or images a second.
    tokens_per_second: float
    #: Exchanges that were completed.
    exchanges: int
    #: Disagreement over local progress: 0.4 to 0.8 is best with pairs, up to 4 with links.
    ratio: Optional[float]
    #: Bytes sent since the process began.
    bytes_sent: int
    #: Bytes received since the process began.
    bytes_received: int
    #: All fields by name.
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Point:
    """A value over a short time: a second of the last ten minutes, ten seconds of the last two hours, else five minutes."""

    #: The middle of that time, in seconds since 1970.
    time: float
    #: The mean of the values in it.
    mean: float
    #: The least of them.
    min: float
    #: The greatest.
    max: float


class Node:
    """A daemon at the address of its status page, as it prints it. Nothing is asked before a method is called."""

    def __init__(self, address: str = "127.0.0.1:4780") -> None:
        self.address = address.strip().replace("http://", "", 1).rstrip("/")
        # A proxy would not reach this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __repr__(self) -> str:
        return f"murmur.Node({self.address!r})"

    def status(self) -> Status:
        """How the node does.

        Raises ``NotRunning`` where nobody answers, ``MurmurError`` where something else than a daemon does.
        """
        raw = self._object("status")
        try:
            return Status(
                peer=raw["peer"],
                name=raw.get("name"),
                run=raw["run"],
                phase=raw["phase"],
                steps=raw["steps"],
                progress=raw["progress"],
                loss=raw.get("loss"),
                validation_loss=raw.get("validation_loss"),
                peers=raw["peers"],
                tokens_per_second=raw["tokens_per_second"],
                exchanges=raw["exchanges_completed"],
                ratio=raw.get("disagreement_ratio"),
                bytes_sent=raw["bytes_sent"],
                bytes_received=raw["bytes_received"],
                raw=raw,
            )
        except KeyError as missing:
            raise self._stranger(f"{missing} is missing") from None

    def records(self, follow: bool = False, after: int = 0) -> Iterator[Record]:
        """What the node tells, from the record after the number ``after``: the last 2,048 are kept, minutes of a busy
        swarm, and a record of the kind ``missed`` says how many are not.

        With ``follow`` it goes on with what comes, until the daemon is gone or the iterator is closed. Raises as ``status``
        does, if nobody answers at first.
        """
        has_answered = False
        # A node may tell more meanwhile than is taken: what came since is not told.
        last = None if follow else max((int(node.get("seq", 0)) for node in self._nodes().values()), default=0)
        while last is None or after < last:
            wait = WAIT if follow and has_answered else 0
            try:
                text = self._text(f"api/v1/records?after={after}&wait={wait}", TIMEOUT + wait)
            except NotRunning:
                if has_answered:
                    return
                raise
            has_answered = True
            # Other ends of lines than this one may stand in a text.
            lines = [line for line in text.split("\n") if line]
            records = [record for record in map(Record.parse, lines) if record is not None]
            if lines and not records:
                raise self._stranger("it tells no records")
            for record in records:
                if last is not None and record.seq > last:
                    return
                after = record.seq
                yield record
            if not records and not follow:
                return

    def events(self, follow: bool = False, after: int = 0) -> Iterator[Record]:
        """Of the records those for people, of the kind ``event``: level, text and hint."""
        return (record for record in self.records(follow, after) if record.kind == "event")

    def series(self, metric: str) -> List[Point]:
        """A curve, oldest point first; empty where nothing is known yet.

        ``metric`` is loss, validation_loss, accuracy, roc_auc, rmse, r_squared, disagreement, ratio, tokens_per_second,
        swarm_tokens_per_second, sent_per_second, received_per_second, processors, memory or disk_free. Points become rarer
        with age; the oldest are of five days ago.
        """
        curves: Dict[str, Any] = {}
        for node in self._nodes().values():
            curves.update(node.get("series", {}))
        if metric not in curves:
            if metric in METRICS:
                return []
            raise ValueError(f"there is no metric {metric!r}; there are {', '.join(METRICS)}")
        points: List[Point] = []
        begin = float("inf")
        for period, ring in zip(PERIODS, curves[metric]["rings"]):
            older = [_point(period, bucket) for bucket in ring if (bucket[0] + 1) * period <= begin]
            points = older + points
            if ring:
                begin = min(begin, ring[0][0] * period)
        return points

    def _nodes(self) -> Dict[str, Any]:
        nodes = self._object("api/v1/picture").get("nodes")
        if not isinstance(nodes, dict):
            raise self._stranger("it has no picture")
        return nodes

    def _object(self, page: str) -> Dict[str, Any]:
        text = self._text(page, TIMEOUT)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._stranger("its answer is no object of JSON")
        return answer

    def _text(self, page: str, timeout: float) -> str:
        try:
            with self._opener.open(f"http://{self.address}/{page}", timeout=timeout) as answer:
                body: bytes = answer.read()
                return body.decode("utf-8", errors="replace")
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        # An answer that breaks off is that of a daemon which ends.
        except (OSError, ValueError, http.client.IncompleteRead, http.client.InvalidURL) as error:
            reason = getattr(error, "reason", error)
            hint = "does it run? `murmur list` shows the runs of this machine, `murmur status NAME` the address of one"
            raise NotRunning(f"no daemon answers at {self.address}: {reason}", hint) from None
        except http.client.HTTPException as error:
            raise self._stranger(f"its answer is no HTTP ({type(error).__name__})") from None

    def _refusal(self, error: urllib.error.HTTPError) -> MurmurError:
        with error:
            try:
                said = json.loads(error.read())
                return MurmurError(str(said["error"]), str(said["hint"]) or None)
            except (ValueError, KeyError, TypeError, http.client.HTTPException):
                return self._stranger(f"it says {error.code}")

    def _stranger(self, what: str) -> MurmurError:
        hint = "a daemon prints its status address, which is not the port for peers"
        return MurmurError(f"what answers at {self.address} is no murmur of this version: {what}", hint)


#: The curves that a daemon keeps.
METRICS = (
    "loss",
    "validation_loss",
    "accuracy",
    "roc_auc",
    "rmse",
    "r_squared",
    "disagreement",
    "ratio",
    "tokens_per_second",
    "swarm_tokens_per_second",
    "sent_per_second",
    "received_per_second",
    "processors",
    "memory",
    "disk_free",
)


def _point(period: float, bucket: List[float]) -> Point:
    index, least, mean, greatest = bucket[:4]
    return Point((index + 0.5) * period, mean, least, greatest)
