#!/usr/bin/env python3
"""Records what a killed daemon costs the others, and how soon a late joiner is level with them.

usage: kill_and_join.py MURMUR RUN.toml [FILE...]

Starts four daemons on loopback, lets them settle, kills one with SIGKILL while it takes part in an exchange, then joins
a fifth. Prints one JSON object: the survivors' step times before and after, the gaps between their steps, and losses.
"""
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE_SECONDS = 300


class Daemon:
    def __init__(self, murmur, folder, name, arguments, files):
        node = os.path.join(folder, "node.toml")
        with open(node, "w", encoding="utf-8") as file:
            file.write("[training]\nevaluate_every = 20\nthreads = 1\n")
        command = [murmur, *arguments, "--node", node, "--format", "json", "--until-stdin-closes"]
        command += ["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off"]
        command += ["--data-dir", os.path.join(folder, name)]
        if files:
            command += ["--data", *files]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.ready, self.reports = None, []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "ready" in message:
                self.ready = message["ready"]
            if "status" in message:
                self.reports.append((time.monotonic(), message["status"]))

    def latest(self):
        return self.reports[-1][1] if self.reports else {"exchanges_completed": 0, "validation_loss": None, "peers": 0}

    def steps_a_second(self, begin, end):
        """Whole steps between the first and the last report of an interval, by the clock."""
        within = [(at, report["steps"]) for at, report in self.reports if begin <= at <= end]
        return (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0])

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def wait(what, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: waited in vain for {what}")
        time.sleep(0.05)


def main():
    murmur, run, *files = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        founder = Daemon(murmur, folder, "node-0", ["start", run], files)
        wait("the founder", lambda: founder.ready)
        join = ["join", founder.ready["ticket"]]
        daemons = [founder] + [Daemon(murmur, folder, f"node-{number}", join, files) for number in (1, 2, 3)]
        wait("three peers each", lambda: all(daemon.latest()["peers"] == 3 for daemon in daemons))
        wait("40 exchanges each", lambda: all(daemon.latest()["exchanges_completed"] >= 40 for daemon in daemons))
        # As much load on the machine before as after: the victim's share of the cores goes to a busy loop.
        killed_at = time.monotonic()
        victim, survivors = daemons[3], daemons[:3]
        victim.process.send_signal(signal.SIGKILL)
        load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            time.sleep(10)
        finally:
            load.kill()
        before = [daemon.steps_a_second(killed_at - 10, killed_at) for daemon in survivors]
        after = [daemon.steps_a_second(killed_at, killed_at + 10) for daemon in survivors]
        fifth = Daemon(murmur, folder, "node-4", join, files)
        wait(
            "the fifth node's first exchanges and evaluation",
            lambda: fifth.latest()["exchanges_completed"] >= 5 and fifth.latest()["validation_loss"] is not None,
        )
        joined, others = fifth.latest(), [daemon.latest() for daemon in survivors]
        mean = statistics.mean(report["validation_loss"] for report in others)
        print(
            json.dumps(
                {
                    "steps_per_second_before_kill": [round(rate, 2) for rate in before],
                    "steps_per_second_after_kill": [round(rate, 2) for rate in after],
                    "exchanges_broken_off": [report["exchanges_failed"] for report in others],
                    "share_at_boundaries": [
                        round(report["seconds_at_boundaries"] / report["seconds_in_training"], 5) for report in others
                    ],
                    "longest_gap_seconds": [round(report["longest_gap_seconds"], 4) for report in others],
                    "median_step_seconds": [round(report["median_step_seconds"], 4) for report in others],
                    "fifth_steps": joined["steps"],
                    "fifth_exchanges": joined["exchanges_completed"],
                    "fifth_validation_loss": joined["validation_loss"],
                    "others_validation_loss": mean,
                    "fifth_over_others": joined["validation_loss"] / mean,
                },
                indent=2,
            )
        )
        for daemon in [*survivors, fifth]:
            daemon.stop()


if __name__ == "__main__":
    main()
