"""Real programs on loopback addresses, for tests as a new user would try them.

    class MyTest(harness.TestCase):
        def test_x(self):
            coordinator = self.start_coordinator()
            result = coordinator.cadre("list")

Programs listen on ports that they choose and tell through --ports-file, so
nothing here is fixed. Everything lives in a fresh folder per test.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

# Programs and fixtures, relative to the runfiles (the working directory).
ROOT = pathlib.Path.cwd()
CADRE = ROOT / "client/cadre"
COORDINATOR = ROOT / "coordinator/cadre-coordinator"
WORKER = ROOT / "worker/cadre-worker"
GOLDEN = ROOT / "tests/golden"
# Generous: a loaded machine is slow, and nothing waits for it to pass.
PATIENCE_SECONDS = 60


def wait_for(condition, what):
    """Asks until condition() is true; returns its value."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE_SECONDS} s in vain for {what}")


class Daemon:
    """A running coordinator or worker."""

    def __init__(self, program, args, folder, name, environment=None):
        self.ports_file = folder / f"{name}.ports"
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(program), *args, f"--ports-file={self.ports_file}"],
                stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                env={**os.environ, **(environment or {})})

    def port(self, key):
        """The port in use, once it serves."""

        def read():
            if self.process.poll() is not None:
                raise AssertionError(
                    f"it left with {self.process.returncode}:\n"
                    f"{self.log.read_text()}")
            return self.ports_file.exists() and self.ports_file.read_text()

        lines = wait_for(read, f"{self.ports_file.name}").split()
        return int(dict(line.split("=") for line in lines)[key])

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


class Coordinator(Daemon):
    """A coordinator and the `cadre` that talks to it."""

    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "state"
        super().__init__(COORDINATOR,
                         ["--insecure", "--listen=127.0.0.1:0",
                          "--metrics-listen=127.0.0.1:0", "--health-listen=off",
                          f"--state-dir={self.state}"], folder, "coordinator")
        self.address = f"127.0.0.1:{self.port('api')}"

    def cadre(self, *args):
        return cadre(self.folder, f"--address={self.address}", *args)

    def json(self, *args):
        result = self.cadre("--json", *args)
        if result.returncode != 0:
            raise AssertionError(f"cadre {args}: {result.stderr}")
        return [json.loads(line) for line in result.stdout.splitlines()]

    def jobs(self):
        return self.json("list", "--all")


def scrape(port):
    """The series of a daemon's metrics, by name with labels as exported."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics",
                                timeout=PATIENCE_SECONDS) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {series: float(value) for series, value in pairs}


def cadre(folder, *args):
    """Runs the command line in `folder`."""
    return subprocess.run([str(CADRE), *[str(arg) for arg in args]],
                          cwd=folder, capture_output=True, text=True,
                          timeout=2 * PATIENCE_SECONDS, check=False)


class TestCase(unittest.TestCase):
    """A fresh folder with a model and data; daemons end with the test."""

    def setUp(self):
        self.folder = pathlib.Path(
            tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start_coordinator(self):
        coordinator = Coordinator(self.folder)
        self.addCleanup(coordinator.stop)
        return coordinator

    def run_program(self, program, *args):
        return subprocess.run([str(program), *args], cwd=self.folder,
                              capture_output=True, text=True,
                              timeout=PATIENCE_SECONDS, check=False)

    def taken_address(self):
        """An address that something listens on until the test ends."""
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        return f"127.0.0.1:{taken.getsockname()[1]}"

    def free_address(self):
        """An address that nothing listens on."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            return f"127.0.0.1:{free.getsockname()[1]}"

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_model(self, vocab_size=None):
        """A tiny model folder: golden weights, golden tokenizer.

        The two do not belong together, which only counting tokens finds out;
        a vocab_size that fits the tokenizer needs `init: random`.
        """
        model = self.folder / "model"
        model.mkdir()
        golden = GOLDEN / "kimi_linear/model"
        for source in (golden / "config.json", golden / "model.safetensors",
                       GOLDEN / "tokenizers/gpt2/tokenizer.json"):
            shutil.copyfile(source, model / source.name)
            (model / source.name).chmod(0o644)
        if vocab_size:
            config = json.loads((model / "config.json").read_text())
            config["vocab_size"] = vocab_size
            (model / "config.json").write_text(json.dumps(config))
        return model

    def write_job(self, extra="", name="job.yaml", **sections):
        """A job that is good but for what the test changes."""
        sections = {
            "model": "{path: model}",
            "data": "{train: [train.jsonl], max_seq_len: 64}",
            "training": "{max_steps: 2, global_batch_size: 2}",
            "resources": "{backend: cpu, workers: 2}",
            **sections,
        }
        lines = ["version: 1"] + [f"{k}: {v}" for k, v in sections.items()]
        return self.write(name, "\n".join(lines) + "\n" + extra)

    def write_data(self, name="train.jsonl", records=8, broken=None):
        """Text records; line `broken` (from 1) loses its end."""
        lines = [json.dumps({"text": f"a b c d {i}"}) for i in range(records)]
        if broken:
            lines[broken - 1] = lines[broken - 1][:-2]
        return self.write(name, "".join(line + "\n" for line in lines))

    def expect_failure(self, result, code, *patterns):
        """One message, with all of the patterns in it."""
        said = result.stdout + result.stderr
        self.assertEqual(result.returncode, code, said)
        for pattern in patterns:
            self.assertRegex(result.stderr, pattern)
        self.assertEqual(len(re.findall(r"\berror:", result.stderr)), 1, said)

    def expect_nothing_left(self, coordinator):
        """No job and no folder of one."""
        self.assertEqual(coordinator.jobs(), [])
        for folder in ("outputs", "checkpoints"):
            path = coordinator.state / folder
            self.assertEqual(list(path.iterdir()) if path.exists() else [], [])
