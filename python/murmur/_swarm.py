"""A swarm of daemons on this machine: `murmur local`."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Dict, List, Optional, Type, Union

from ._errors import MurmurError
from ._node import Node

#: Seconds within which all daemons listen, where nothing else is said.
READY_TIMEOUT = 120.0

#: Seconds within which they leave: `murmur local` itself waits 900 for last checkpoints, which may be large.
STOP_TIMEOUT = 920.0


def local(
    nodes: int = 4,
    run: Union[str, Path, None] = None,
    steps: Optional[int] = None,
    directory: Union[str, Path, None] = None,
    binary: Union[str, Path, None] = None,
    options: Optional[List[str]] = None,
    ready_timeout: float = READY_TIMEOUT,
) -> "Swarm":
    """Daemons on this machine that train one model, for a ``with`` statement. They begin with its body, and are stopped at its
    end.

    ``run`` is a run file (the built-in stories without one), ``steps`` the steps of each daemon, ``directory`` where their data
    is kept (a new folder of `murmur local` without one), ``binary`` the program (the one that was installed with this package,
    else the one on the path), ``options`` are further ones of `murmur local`. All daemons listen within ``ready_timeout`` seconds,
    or they are stopped: give more where data or a base is loaded from elsewhere first.
    """
    return Swarm(nodes, run, steps, directory, binary, options, ready_timeout)


class Swarm:
    """What :func:`local` gives. In its body all daemons listen."""

    #: The daemons, the founder first.
    nodes: List[Node]
    #: Their data directories.
    directories: List[Path]
    #: What `murmur local` sums up at the end; ``None`` before it.
    summary: Optional[Dict[str, Any]]

    def __init__(
        self,
        nodes: int,
        run: Union[str, Path, None],
        steps: Optional[int],
        directory: Union[str, Path, None],
        binary: Union[str, Path, None],
        options: Optional[List[str]],
        ready_timeout: float,
    ) -> None:
        self._count = nodes
        self._ready_timeout = ready_timeout
        self._command = [str(_program(binary)), "local", "--nodes", str(nodes), "--format", "json"]
        # However this process ends, its daemons leave the swarm then.
        self._command.append("--until-stdin-closes")
        if run is not None:
            self._command.append(str(run))
        if steps is not None:
            self._command += ["--steps", str(steps)]
        if directory is not None:
            self._command += ["--directory", str(directory)]
        self._own = list(self._command)
        self._command += options or []
        self._process: "Optional[subprocess.Popen[str]]" = None
        self._errors: Optional[IO[str]] = None
        self.nodes, self.directories, self.summary = [], [], None

    def __enter__(self) -> "Swarm":
        if self._process is not None:
            raise MurmurError("this swarm was started before", "call murmur.local again")
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        except OSError as error:
            self._errors.close()
            raise MurmurError(f"cannot start {self._command[0]}: {error}") from None
        ready: "queue.Queue[Optional[Dict[str, Any]]]" = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self._reader.start()
        try:
            self._wait_until_ready(ready)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()

    def wait(self, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Waits until the run is complete and all daemons have ended; what they sum up.

        Raises ``TimeoutError`` after ``timeout`` seconds, and ``MurmurError`` where the daemons fail.
        """
        process = self._started()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the run is not complete after {timeout} s") from None
        self._reader.join()
        if code != 0 or self.summary is None:
            raise self._failure(code)
        return self.summary

    def stop(self) -> None:
        """Lets every daemon leave the swarm and write its last checkpoint, and waits for that. Does nothing where they have
        ended."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                # Its daemons end with it.
                process.kill()
                process.wait()
        self._reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if self._errors is not None:
            self._errors.close()

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise MurmurError("the swarm was not started", "use it in a with statement")
        return self._process

    def _read(self, ready: "queue.Queue[Optional[Dict[str, Any]]]") -> None:
        """Takes every line, so that `murmur local` never waits for this process."""
        process = self._started()
        assert process.stdout is not None, "it was asked for"
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "summary" in said:
                self.summary = said["summary"]
            elif "ready" in said.get("line", {}):
                ready.put({"node": said["node"], **said["line"]["ready"]})
        ready.put(None)

    def _wait_until_ready(self, ready: "queue.Queue[Optional[Dict[str, Any]]]") -> None:
        found: Dict[int, Dict[str, Any]] = {}
        deadline = time.monotonic() + self._ready_timeout
        while len(found) < max(1, self._count):
            try:
                one = ready.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise MurmurError(f"the daemons are not ready after {self._ready_timeout:g} s") from None
            if one is None:
                raise self._failure(self._started().wait())
            found[one["node"]] = one
        in_order = [found[number] for number in sorted(found)]
        self.nodes = [Node(one["status_address"]) for one in in_order]
        self.directories = [Path(one["data_directory"]) for one in in_order]

    def _failure(self, code: int) -> MurmurError:
        assert self._errors is not None, "it was started"
        if self._errors.closed:
            return MurmurError(f"murmur local has ended with {code}")
        self._errors.seek(0)
        lines = self._errors.read().splitlines()
        said = {word: line[len(word) + 2 :] for word in ("error", "hint") for line in lines if line.startswith(f"{word}: ")}
        error, hint = said.get("error", f"murmur local has ended with {code}"), said.get("hint")
        # Both may have the same version, so what tells is that the program does not know what this package asks for.
        if any(error.startswith(f"unexpected argument '{argument}'") for argument in self._own):
            hint = f"{self._own[0]} is older than this package: install the murmur of the same release, or give its path as binary="
        return MurmurError(error, hint)


def _program(given: Union[str, Path, None]) -> Path:
    if given is not None:
        return Path(given)
    installed = Path(sysconfig.get_path("scripts")) / ("murmur.exe" if os.name == "nt" else "murmur")
    found = str(installed) if installed.exists() else shutil.which("murmur")
    if found is None:
        raise MurmurError("there is no program murmur", "install it, or give its path as binary=")
    return Path(found)
