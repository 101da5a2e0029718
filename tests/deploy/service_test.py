"""The daemons under a service manager: READY, WATCHDOG, STOPPING, SIGTERM."""

import os
import signal
import socket
import subprocess
import unittest

from tests.cli import harness


class Manager:
    """The manager's end of NOTIFY_SOCKET."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Abstract: test folders are too deep for a socket's path.
        self.address = f"@cadre-test-{os.getpid()}-{name}"
        self.socket.bind("\0" + self.address[1:])
        self.socket.settimeout(harness.PATIENCE_SECONDS)

    def environment(self, watchdog_seconds):
        return {**os.environ, "NOTIFY_SOCKET": self.address,
                "WATCHDOG_USEC": str(int(watchdog_seconds * 1e6))}

    def next(self):
        return self.socket.recv(65536).decode()

    def until(self, text):
        """Messages up to the first that holds the text."""
        seen = []
        while not seen or text not in seen[-1]:
            seen.append(self.next())
        return seen


class Service(harness.TestCase):

    def start(self, name, program, *args):
        manager = Manager(name)
        self.addCleanup(manager.socket.close)
        log = (self.folder / f"{name}.log").open("wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [str(program), *args], env=manager.environment(0.3),
            cwd=self.folder, stdout=log, stderr=log)
        self.addCleanup(process.kill)
        return manager, process

    def check_life(self, manager, process, address_text):
        ready = manager.until("READY=1")[-1]
        self.assertIn(address_text, ready)
        self.assertIn("STATUS=", ready)
        self.assertEqual(manager.until("WATCHDOG=1")[-1], "WATCHDOG=1")
        self.assertEqual(manager.until("WATCHDOG=1")[-1], "WATCHDOG=1")
        # A process that stands still gives no sign of life.
        os.kill(process.pid, signal.SIGSTOP)
        manager.socket.settimeout(1)
        with self.assertRaises(TimeoutError):
            while True:
                manager.next()
        os.kill(process.pid, signal.SIGCONT)
        manager.socket.settimeout(harness.PATIENCE_SECONDS)
        manager.until("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1")
        self.assertEqual(process.wait(harness.PATIENCE_SECONDS), 0)

    def test_coordinator(self):
        manager, process = self.start(
            "coordinator", harness.COORDINATOR, "--insecure",
            "--listen=127.0.0.1:0", "--metrics-listen=off",
            "--health-listen=127.0.0.1:0", "--state-dir=state")
        self.check_life(manager, process, "listening on 127.0.0.1:")

    def test_worker_without_a_coordinator(self):
        # Not its fault: it is ready, stays alive and waits.
        manager, process = self.start(
            "worker", harness.WORKER, "--insecure", "--device=cpu",
            "--coordinator=127.0.0.1:1", "--metrics-listen=off",
            "--health-listen=127.0.0.1:0", "--worker-id=w.0")
        self.check_life(manager, process, "worker w.0")

    def test_one_process_per_device_started_again_and_stopped_together(self):
        log = self.folder / "supervisor.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(harness.WORKER), "--per-device", "--devices=2",
                 "--insecure", "--device=cpu", "--coordinator=127.0.0.1:1",
                 "--metrics-listen=off", "--health-listen=127.0.0.1:0",
                 "--worker-id=node.0", "--ports-file=ports"],
                cwd=self.folder, stdout=out, stderr=out)
        self.addCleanup(process.kill)

        def children():
            found = subprocess.run(["pgrep", "-P", str(process.pid)],
                                   capture_output=True, text=True, check=False)
            return {int(pid) for pid in found.stdout.split()}

        first = harness.wait_for(
            lambda: len(children()) == 2 and children(), "two workers")
        for index in (0, 1):
            harness.wait_for((self.folder / f"ports.{index}").exists,
                             f"worker {index}")
        os.kill(min(first), signal.SIGKILL)
        harness.wait_for(lambda: len(children() - first) == 1 and
                         len(children()) == 2, "a new worker")
        harness.wait_for(lambda: "worker node.1 on cpu" in log.read_text(),
                         "the second worker's name")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(harness.PATIENCE_SECONDS), 0,
                         log.read_text())
        self.assertEqual(children(), set())


if __name__ == "__main__":
    unittest.main()
