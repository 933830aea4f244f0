"""Records: what a node tells of itself, from a daemon or from its journal."""

import json
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from ._errors import MurmurError

#: The newest format of records that is read.
VERSION = 1


@dataclass(frozen=True)
class Record:
    """One thing that a node tells. What is in ``data`` follows from ``kind``:

    ``run``       a process begins: run, run_name, version, parameters, device, first_step, …
    ``sample``    how it goes, once a second: phase, steps, loss, peers, sent, received, …
    ``peers``     the members that are known
    ``exchange``  an exchange has ended: partner, result, distance, seconds, …
    ``event``     something for people: level, text, hint
    ``missed``    records were lost: count, of
    ``end``       the process has left in order: steps, complete, failure

    Daemons of later versions may tell other kinds.
    """

    #: Counts a node's records from 1, over restarts.
    seq: int
    #: When, on the node's wall clock, which may jump; in UTC.
    time: datetime
    #: Seconds since its process began to train or to look for a model.
    up: float
    #: The node's peer id.
    node: str
    #: What is told.
    kind: str
    #: The fields of its kind.
    data: Mapping[str, Any]

    def get(self, field: str) -> Any:
        """A field of its kind; ``None`` where it is not known."""
        return self.data.get(field)

    @staticmethod
    def parse(line: str) -> "Optional[Record]":
        """The record of a line of JSON; ``None`` where it is none, or one of a newer format."""
        try:
            fields: Dict[str, Any] = json.loads(line)
            if fields.pop("v") > VERSION:
                return None
            # Python 3.9 does not know the Z.
            time = datetime.fromisoformat(fields.pop("t").replace("Z", "+00:00"))
            own = {name: fields.pop(name) for name in ("seq", "up", "node", "kind")}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return Record(int(own["seq"]), time, float(own["up"]), str(own["node"]), str(own["kind"]), fields)


def read_journal(path: Union[str, Path]) -> Iterator[Record]:
    """The records of a journal, each once, in the order in which they were told.

    ``path`` is a file of it, its folder, or the data directory of a node, whose daemon may run meanwhile. Lines that are no
    records, such as one that a killed daemon has not finished, are left out.

    Raises ``MurmurError`` where there is no journal, or no record of this version in it.
    """
    given = Path(path)
    if given.is_dir():
        files = _files(given / "journal") or _files(given)
    else:
        files = [given] if given.exists() else []
    if not files:
        raise MurmurError(f"there is no journal at {given}", "it lies in the data directory of a node, as journal/")
    records = _read(files)
    first = next(records, None)
    if first is None:
        raise MurmurError(f"{given} is no journal of murmur, or one of a newer version", "a journal is journal/*.jsonl")
    return chain([first], records)


def _files(folder: Path) -> List[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def _read(files: List[Path]) -> Iterator[Record]:
    # Each file repeats the first record of its process.
    last: Dict[str, int] = {}
    for path in files:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                record = Record.parse(line)
                if record is not None and record.seq > last.get(record.node, 0):
                    last[record.node] = record.seq
                    yield record
