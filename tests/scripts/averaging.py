#!/usr/bin/env python3
"""Averages about ten million float32 values among 2, 4 and 8 processes on this machine, side by side: murmur's synchronous
mode between real daemons, hivemind's averager, and gloo's all-reduce of PyTorch.

usage: averaging.py MURMUR [--members 2,4,8] [--rounds 10] [--turns 2] [--python PYTHON] [--only murmur,hivemind,gloo]

Without --python it makes a virtual environment in a temporary folder and installs hivemind 1.1.12 from PyPI, with PyTorch.
A round lasts from the last one's beginning until all have the mean. hivemind and gloo are told to begin by a line to each
process. Daemons train a model of this size on tiny batches, and average its gradient in every step: told is how long in each
operation the member stood still that contributed last, from its contribution until it had the sum; and the whole step. Processor time and memory (PSS) are those of all processes of a member, with training
where it is murmur. Methods take turns, and the load of the machine is told with each.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE_SECONDS = 600
RUN = """\
[run]
name = "averaging"
[model]
layers = 8
width = 320
heads = 5
feed_forward = 856
context = 8
[optimizer]
batch_sequences = 1
[schedule]
total_steps = 0
[data]
validation_sequences = 1
[synchronous]
topology = "ring"
members_min = {members}
"""


def processes_of(process):
    """A process and all that it has started."""
    found = [process]
    for one in found:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", encoding="ascii") as file:
                    found += [int(child) for child in file.read().split()]
        except OSError:
            pass
    return found


def usage(process):
    """Seconds of processor time, and bytes of memory, of a process and its children."""
    seconds, memory = 0.0, 0
    for one in processes_of(process):
        try:
            with open(f"/proc/{one}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            with open(f"/proc/{one}/smaps_rollup", encoding="ascii") as file:
                memory += sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            pass
    return seconds, memory


def wait(what, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: waited in vain for {what}")
        time.sleep(0.02)


class Daemon:
    def __init__(self, murmur, folder, name, arguments):
        node = os.path.join(folder, "node.toml")
        with open(node, "w", encoding="utf-8") as file:
            file.write("[training]\nthreads = 1\n[checkpoint]\nevery_seconds = 0\n")
        command = [murmur, *arguments, "--node", node, "--format", "json", "--until-stdin-closes"]
        command += ["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off"]
        command += ["--data-dir", os.path.join(folder, name)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.ready, self.last = None, None
        # Seconds waited in all, by all-reduces finished: the least that was reported, as it is until the next contribution.
        self.waited = {}
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            self.ready = message.get("ready", self.ready)
            if "status" in message:
                told = message["status"].get("synchronous")
                if told:
                    count, seconds = told["all_reduces"], told["seconds_waited"]
                    self.waited[count] = min(seconds, self.waited.get(count, seconds))
                self.last = (time.monotonic(), message["status"])

    def finished(self):
        if self.process.poll() is not None:
            raise SystemExit(f"error: a daemon has ended: {self.process.args}")
        told = self.last and self.last[1].get("synchronous")
        return told["all_reduces"] if told else 0


def murmur_rounds(murmur, members, rounds):
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run.toml")
        with open(run, "w", encoding="utf-8") as file:
            file.write(RUN.format(members=members))
        daemons = [Daemon(murmur, folder, "0", ["start", run])]
        try:
            wait("the founder", lambda: daemons[0].finished() >= 0 and daemons[0].ready)
            join = ["join", daemons[0].ready["ticket"]]
            daemons += [Daemon(murmur, folder, str(number), join) for number in range(1, members)]
            wait("all to average", lambda: all(daemon.finished() >= 3 for daemon in daemons))
            before = [(daemon.last, usage(daemon.process.pid)) for daemon in daemons]
            wait("the rounds", lambda: all(
                daemon.finished() >= old[1]["synchronous"]["all_reduces"] + rounds
                for daemon, (old, _) in zip(daemons, before)
            ))
            after = [(daemon.last, usage(daemon.process.pid)) for daemon in daemons]
            steps, seconds = [], []
            for ((at, old), (cpu, _)), ((then, new), (cpu_then, _)) in zip(before, after):
                old, new = old["synchronous"], new["synchronous"]
                done = new["all_reduces"] - old["all_reduces"]
                steps.append((then - at) / done)
                seconds.append((cpu_then - cpu) / done)
            # Members count alike, but for those that have copied a replica instead of finishing an operation.
            last = min(new["synchronous"]["all_reduces"] for (_, new), _ in after)
            of_one = lambda daemon, count: daemon.waited[count] - daemon.waited[count - 1]
            taken = []
            for count in range(last - rounds + 1, last + 1):
                if all({count, count - 1} <= daemon.waited.keys() for daemon in daemons):
                    taken.append(min(of_one(daemon, count) for daemon in daemons))
            if not taken:
                # Steps are shorter than a report's period: the mean of the member that stood still least, which is no less.
                waited = lambda old, new: new["synchronous"]["seconds_waited"] - old["synchronous"]["seconds_waited"]
                done = lambda old, new: new["synchronous"]["all_reduces"] - old["synchronous"]["all_reduces"]
                pairs = [(old, new) for ((_, old), _), ((_, new), _) in zip(before, after)]
                taken = [min(waited(*pair) / done(*pair) for pair in pairs)]
            return {
                "parameters": daemons[0].last[1]["parameters"],
                "seconds": statistics.median(taken),
                "slowest_seconds": max(taken),
                "told_apart": len(taken),
                "whole_step_seconds": statistics.mean(steps),
                "processor_seconds": statistics.mean(seconds),
                "memory_bytes": max(memory for _, (_, memory) in after),
                "begun_anew": max(one["synchronous"]["dropped"] for (_, one), _ in after),
            }
        finally:
            for daemon in daemons:
                daemon.process.stdin.close()
            for daemon in daemons:
                daemon.process.wait(timeout=60)


def of_processes(python, method, members, rounds, values):
    """Rounds of processes that begin at a line and tell when they began and had the mean."""
    with tempfile.TemporaryDirectory() as folder:
        peers = []
        try:
            for rank in range(members):
                command = [python, os.path.abspath(__file__), "--peer", method, str(rank), str(members), str(values)]
                command += [folder] + ([peers[0].address] if method == "hivemind" and rank else [])
                peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                peers.append(peer)
                if method == "hivemind" and rank == 0:
                    peer.address = peer.stdout.readline().strip()
            for peer in peers:
                assert peer.stdout.readline().strip() == "ready", f"a process of {method} has failed"
            taken, seconds, memory = [], [], 0
            for number in range(rounds + 2):
                before = [usage(peer.pid)[0] for peer in peers]
                for peer in peers:
                    peer.stdin.write("go\n")
                    peer.stdin.flush()
                told = [json.loads(peer.stdout.readline()) for peer in peers]
                after = [usage(peer.pid) for peer in peers]
                assert all(one["is_mean"] for one in told), "not everybody has the mean"
                # The first two warm up.
                if number >= 2:
                    taken.append(max(one["end"] for one in told) - max(one["begin"] for one in told))
                    seconds.append(statistics.mean(now - old for (now, _), old in zip(after, before)))
                memory = max(memory, *(bytes for _, bytes in after))
            return {
                "seconds": statistics.median(taken),
                "slowest_seconds": max(taken),
                "processor_seconds": statistics.mean(seconds),
                "memory_bytes": memory,
            }
        finally:
            for peer in peers:
                peer.stdin.close()
            for peer in peers:
                peer.wait(timeout=60)


def peer(method, rank, members, values, folder, address=None):
    """One process of gloo or hivemind."""
    rank, members, values = int(rank), int(members), int(values)
    import torch

    torch.set_num_threads(1)
    if method == "gloo":
        import torch.distributed as distributed

        distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=members)
        vector = torch.empty(values)

        def average():
            distributed.all_reduce(vector)
            vector.div_(members)
            return vector
    else:
        import hivemind

        known = [address] if address else []
        dht = hivemind.DHT(initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
        if rank == 0:
            print(str(dht.get_visible_maddrs()[0]), flush=True)
        averager = hivemind.averaging.DecentralizedAverager(
            [torch.empty(values)],
            dht,
            prefix="averaging",
            target_group_size=members,
            min_group_size=members,
            # A group is begun as soon as it is full.
            min_matchmaking_time=30.0,
            start=True,
        )

        def average():
            while averager.step(timeout=120) is None:
                pass
            with averager.get_tensors() as tensors:
                return tensors[0]

    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        own = float(rank + number)
        if method == "gloo":
            vector.fill_(own)
        else:
            with averager.get_tensors() as tensors:
                tensors[0].fill_(own)
        begin = time.monotonic()
        mean = average()
        end = time.monotonic()
        expected = (members - 1) / 2 + number
        is_mean = bool(torch.all((mean - expected).abs() < 1e-3))
        print(json.dumps({"begin": begin, "end": end, "is_mean": is_mean}), flush=True)
    # Their threads do not end by themselves.
    sys.stdout.flush()
    if method == "hivemind":
        averager.shutdown()
        dht.shutdown()
    os._exit(0)


def environment(folder):
    """A Python with hivemind and PyTorch."""
    print("installing hivemind 1.1.12 and PyTorch from PyPI: some gigabytes", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = os.path.join(folder, "bin", "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "hivemind==1.1.12", "numpy<2.4"], check=True)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("murmur")
    parser.add_argument("--members", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--python")
    parser.add_argument("--only", default="murmur,hivemind,gloo")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        methods = options.only.split(",")
        needs_python = not options.python and methods != ["murmur"]
        python = environment(os.path.join(folder, "python")) if needs_python else options.python
        values = 10_000_000
        for members in map(int, options.members.split(",")):
            for turn in range(options.turns):
                for method in methods:
                    load = os.getloadavg()[0]
                    if method == "murmur":
                        told = murmur_rounds(options.murmur, members, options.rounds)
                        values = told["parameters"]
                    else:
                        told = of_processes(python, method, members, options.rounds, values)
                    line = {"method": method, "members": members, "turn": turn, "values": values, "load": load, **told}
                    print(json.dumps({name: round(one, 4) if isinstance(one, float) else one for name, one in line.items()}), flush=True)


if __name__ == "__main__":
    peer(*sys.argv[2:]) if sys.argv[1:2] == ["--peer"] else main()
