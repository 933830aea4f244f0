"""The package against real daemons: MURMUR_TEST_BINARY names the program, and nothing but the standard library is needed.

    MURMUR_TEST_BINARY=target/debug/murmur python3 -m unittest discover python/tests
"""

import http.server
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import murmur

BINARY = os.environ["MURMUR_TEST_BINARY"]

#: Seconds for each thing that is waited for, on two busy cores.
PATIENCE = 60.0

RUN = """\
[run]
name = "tiny"
[model]
layers = 1
width = 32
heads = 2
feed_forward = 64
context = 32
[optimizer]
batch_sequences = 4
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 32
[gossip]
interval_steps = 5
final_exchanges = 4
"""


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.run_file = self.folder / "run.toml"
        self.run_file.write_text(RUN)

    def local(self, **wishes):
        return murmur.local(binary=BINARY, run=self.run_file, directory=self.folder / "swarm", **wishes)

    def serve(self, status, text):
        """The address of a server that answers everything alike, or as a function of what is asked."""
        answer = text if callable(text) else lambda path: text

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer(self.path).encode())

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_port}"

    def wait_until(self, what, holds):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"waited in vain for {what}")
            time.sleep(0.1)


class Daemons(Case):
    def test_a_swarm_is_seen_followed_and_remembered(self):
        with self.local(nodes=2) as swarm:
            self.assertEqual(len(swarm.nodes), 2)
            for node in swarm.nodes:
                self.wait_until("exchanges", lambda: node.status().exchanges > 0 and node.status().loss is not None)
            status = swarm.nodes[0].status()
            self.assertEqual((status.phase, status.peers, status.name), ("training", 1, None))
            self.assertEqual(status.raw["steps"], status.steps)

            self.wait_until("a curve", lambda: len(swarm.nodes[0].series("loss")) >= 3)
            curve = swarm.nodes[0].series("loss")
            times = [point.time for point in curve]
            self.assertEqual(times, sorted(set(times)))
            self.assertLess(abs(times[-1] - time.time()), 30)
            self.assertTrue(all(0 < point.min <= point.mean * 1.001 <= point.max * 1.002 for point in curve), curve)
            with self.assertRaisesRegex(ValueError, "validation_loss"):
                swarm.nodes[0].series("los")

            told = list(itertools.islice(swarm.nodes[0].records(follow=True), 20))
            self.assertEqual([record.seq for record in told], list(range(1, 21)))
            self.assertEqual(told[0].kind, "run")
            self.assertEqual(told[0].get("run_name"), "tiny")
            seen = next(event for event in swarm.nodes[0].events(follow=True) if "connected" in event.data["text"])
            self.assertEqual(seen.data["level"], "info")
            # One that follows ends with the daemon.
            last = swarm.nodes[1].status().raw["steps"]
            tail = []
            follower = threading.Thread(target=lambda: tail.extend(swarm.nodes[1].records(follow=True)))
            follower.start()
        follower.join(PATIENCE)
        self.assertFalse(follower.is_alive())
        self.assertGreater(len(tail), 3)
        with self.assertRaises(murmur.NotRunning):
            swarm.nodes[0].status()
        self.assertEqual(len(swarm.summary["nodes"]) if "nodes" in swarm.summary else 2, 2)

        journal = list(murmur.read_journal(swarm.directories[1]))
        self.assertEqual([record.seq for record in journal], list(range(1, len(journal) + 1)))
        self.assertEqual(journal[-1].kind, "end")
        self.assertGreaterEqual(journal[-1].get("steps"), last)
        self.assertEqual(tail, journal[: len(tail)])
        self.assertEqual(journal, list(murmur.read_journal(swarm.directories[1] / "journal")))

    def test_a_run_is_waited_for(self):
        with self.local(nodes=2, steps=60) as swarm:
            with self.assertRaises(TimeoutError):
                swarm.wait(timeout=0.01)
            self.assertIsInstance(swarm.wait(timeout=PATIENCE), dict)
        for directory in swarm.directories:
            end = list(murmur.read_journal(directory))[-1]
            self.assertEqual((end.kind, end.get("complete")), ("end", True))

    def test_an_error_in_the_body_ends_the_daemons(self):
        with self.assertRaises(ZeroDivisionError):
            with self.local(nodes=1) as swarm:
                1 / 0
        with self.assertRaises(murmur.NotRunning):
            swarm.nodes[0].status()


    def test_daemons_end_with_the_process_that_began_them(self):
        begin = (
            "import murmur, sys, time\n"
            "with murmur.local(nodes=1, binary=sys.argv[1], run=sys.argv[2], directory=sys.argv[3]) as swarm:\n"
            "    print(swarm.nodes[0].address, flush=True)\n"
            "    time.sleep(600)\n"
        )
        words = [sys.executable, "-c", begin, BINARY, str(self.run_file), str(self.folder / "swarm")]
        own = {**os.environ, "PYTHONPATH": str(Path(murmur.__file__).resolve().parent.parent)}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=own) as process:
            node = murmur.Node(process.stdout.readline().strip())
            self.assertEqual(node.status().phase, "training")
            process.kill()

        def has_ended():
            try:
                node.status()
            except murmur.NotRunning:
                return True
            return False

        self.wait_until("the daemon's end", has_ended)
        self.wait_until("its last word", lambda: list(murmur.read_journal(self.folder / "swarm" / "node-0"))[-1].kind == "end")


class Refusals(Case):
    def test_what_murmur_refuses_is_told_with_its_hint(self):
        self.run_file.write_text("[model]\nlayerz = 1\n")
        with self.assertRaises(murmur.MurmurError) as refused:
            with self.local(nodes=1):
                self.fail("it started")
        self.assertIn("layerz", refused.exception.message)
        self.assertIn("layers", refused.exception.hint)
        with self.assertRaisesRegex(murmur.MurmurError, "cannot start"):
            with murmur.local(binary=self.folder / "nothing"):
                self.fail("it started")
        for few in (0, -1):
            with self.assertRaisesRegex(murmur.MurmurError, "1 to 64"):
                with murmur.local(nodes=few, binary=BINARY):
                    self.fail("it started")

    @unittest.skipIf(os.name == "nt", "the old program is a script of a shell")
    def test_a_program_older_than_the_package_is_named(self):
        old = self.folder / "old"
        old.write_text("#!/bin/sh\necho \"error: unexpected argument '--until-stdin-closes' found\" >&2\nexit 2\n")
        old.chmod(0o755)
        with self.assertRaises(murmur.MurmurError) as refused:
            with murmur.local(binary=old):
                self.fail("it started")
        self.assertIn(f"{old} is older than this package", refused.exception.hint)
        self.assertIn("binary=", refused.exception.hint)
        # What the user asks for besides is the user's.
        with self.assertRaises(murmur.MurmurError) as refused:
            with self.local(nodes=1, options=["--unheard-of"]):
                self.fail("it started")
        self.assertIn("--unheard-of", refused.exception.message)
        self.assertNotIn("older", str(refused.exception))

    def test_daemons_that_are_not_ready_in_time_are_stopped(self):
        with self.assertRaisesRegex(murmur.MurmurError, "not ready after 0 s"):
            with self.local(nodes=1, ready_timeout=0.0):
                self.fail("it was ready at once")

    def test_nobody_and_a_stranger_are_told_apart_from_a_daemon(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        with self.assertRaises(murmur.NotRunning) as nobody:
            murmur.Node(address).status()
        self.assertIn("murmur list", nobody.exception.hint)
        self.assertIn("`murmur status NAME` the address", nobody.exception.hint)
        with self.assertRaises(murmur.NotRunning):
            list(murmur.Node(address).records(follow=True))

        stranger = murmur.Node(f"http://{self.serve(200, '<html>hello</html>')}/")
        for ask in (stranger.status, lambda: stranger.series("loss"), lambda: list(stranger.records())):
            with self.assertRaisesRegex(murmur.MurmurError, "no murmur") as refused:
                ask()
            self.assertNotIsInstance(refused.exception, murmur.NotRunning)

    def answer(self, raw):
        """The address of a server that answers one request with these bytes."""
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def serve():
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(raw)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    def test_an_answer_that_breaks_off_or_is_no_http_is_an_error_of_this_package(self):
        for raw in (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b""):
            with self.assertRaisesRegex(murmur.NotRunning, "no daemon answers"):
                murmur.Node(self.answer(raw)).status()
        with self.assertRaises(murmur.NotRunning):
            murmur.Node("localhost:port").status()
        for raw in (b"/multistream/1.0.0\n", b"HTTP/1.1 503 Busy\r\nContent-Length: 99\r\n\r\n{"):
            with self.assertRaisesRegex(murmur.MurmurError, "no murmur") as refused:
                murmur.Node(self.answer(raw)).status()
            self.assertNotIsInstance(refused.exception, murmur.NotRunning)

    def test_what_a_daemon_denies_is_told_with_its_hint(self):
        node = murmur.Node(self.serve(503, '{"error": "16 views follow it", "hint": "close one"}'))
        with self.assertRaises(murmur.MurmurError) as denied:
            node.status()
        self.assertEqual((denied.exception.message, denied.exception.hint), ("16 views follow it", "close one"))
        with self.assertRaisesRegex(murmur.MurmurError, "404"):
            murmur.Node(self.serve(404, "")).status()

    def told(self, records):
        """A node that has told these records, and tells one more each time it is asked for some."""
        records = list(records)

        def answer(path):
            if path.startswith("/api/v1/picture"):
                return json.dumps({"nodes": {"n": {"seq": len(records)}}})
            records.append(self.line(len(records) + 1))
            after = int(path.partition("after=")[2].partition("&")[0])
            return "".join(line + "\n" for line in records[after : after + 2])

        return murmur.Node(self.serve(200, answer))

    def line(self, seq, text=""):
        """A record of a node whose clock is an hour ahead."""
        told = datetime.now(timezone.utc) + timedelta(hours=1)
        fields = {"v": 1, "seq": seq, "t": told.isoformat(), "up": 1.0, "node": "n", "kind": "event", "text": text}
        return json.dumps(fields, ensure_ascii=False)

    def test_what_was_told_so_far_is_told_whatever_a_clock_is_set_to(self):
        node = self.told(self.line(seq) for seq in range(1, 6))
        self.assertEqual([record.seq for record in node.records()], [1, 2, 3, 4, 5])
        self.assertEqual([record.seq for record in node.records(after=6)], [7, 8])
        self.assertEqual(list(self.told([]).records()), [])

    def test_a_record_is_a_line_whatever_its_text_holds(self):
        texts = ["a\u2028b", "c\u2029d", "e\u0085f"]
        node = self.told(self.line(seq, text) for seq, text in enumerate(texts, 1))
        self.assertEqual([record.get("text") for record in node.records()], texts)

    def test_a_curve_of_hours_has_rarer_points_with_age(self):
        # Buckets of 1, 10 and 300 seconds: number, least, mean, greatest, how many.
        fine = [[2001, 1, 2, 3, 1], [2002, 1, 4, 5, 1]]
        tens = [[198, 0, 8, 9, 9], [199, 0, 7, 9, 9], [200, 0, 6, 9, 9]]
        fives = [[5, 0, 9, 9, 99], [6, 0, 5, 9, 99]]
        picture = {"nodes": {"n": {"series": {"loss": {"rings": [fine, tens, fives]}}}}}
        node = murmur.Node(self.serve(200, json.dumps(picture)))
        curve = [(point.time, point.mean) for point in node.series("loss")]
        # What a finer ring has is not there twice.
        self.assertEqual(curve, [(1650.0, 9), (1985.0, 8), (1995.0, 7), (2001.5, 2), (2002.5, 4)])
        self.assertEqual(node.series("memory"), [])

    def test_a_journal_is_read_over_files_and_torn_lines(self):
        line = '{{"v":{v},"seq":{seq},"t":"2026-01-31T12:00:00.123Z","up":1,"node":"n","kind":"end","steps":3}}\n'
        folder = self.folder / "journal"
        folder.mkdir()
        (folder / "00000001.jsonl").write_text(line.format(v=1, seq=1) + "[]\n" + line.format(v=1, seq=2)[:30])
        (folder / "00000002.jsonl").write_text(
            line.format(v=1, seq=1) + line.format(v=1, seq=2) + line.format(v=2, seq=3) + line.format(v=1, seq=4)
        )
        (folder / "notes.jsonl").write_text(line.format(v=1, seq=9))
        records = list(murmur.read_journal(self.folder))
        self.assertEqual([record.seq for record in records], [1, 2, 4])
        self.assertEqual(records[0].time.isoformat(), "2026-01-31T12:00:00.123000+00:00")
        self.assertEqual((records[0].get("steps"), records[0].get("failure")), (3, None))
        for nothing in (self.folder / "nothing", self.folder / "journal" / ".."  / "run.d"):
            with self.assertRaisesRegex(murmur.MurmurError, "no journal"):
                murmur.read_journal(nothing)
        notes = self.folder / "notes.txt"
        notes.write_text("mine\n")
        with self.assertRaisesRegex(murmur.MurmurError, "no journal"):
            murmur.read_journal(notes)


if __name__ == "__main__":
    unittest.main()
