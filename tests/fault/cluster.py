"""Real daemons on loopback that a test can kill, stop, cut off and restart.

The coordinator keeps its address over restarts. Workers reach it through a
relay each, so that a test can cut one worker off in one direction or both
without any right on the machine.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path.cwd()
CADRE = ROOT / "client/cadre"
COORDINATOR = ROOT / "coordinator/cadre-coordinator"
WORKER = ROOT / "worker/cadre-worker"
GOLDEN = ROOT / "tests/golden/kimi_linear/model"
PATIENCE_SECONDS = 90

# As short as the rules of docs/timeouts.md allow for a machine that is busy.
TIMEOUTS = """timeouts {
  sync_interval: "200ms" sync_deadline: "1s" abort_grace: "1500ms"
  lease_ttl: "3s" collective_timeout: "8s" step_timeout: "20s"
  rendezvous_timeout: "30s" checkpoint_timeout: "40s" drain_deadline: "70s"
  stop_grace: "100s" orphan_limit: "120s" start_timeout: "60s"
}
"""

TERMINAL = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")


def wait_for(condition, what, seconds=PATIENCE_SECONDS):
    """Asks until condition() is true; returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Relay:
    """A TCP relay whose two directions can be held back separately.

    What is held back is not lost: it waits, as in a real partition, for TCP to
    send it again. A slow relay keeps each piece for a while, and lets so many
    bytes a second pass.
    """

    def __init__(self, port, delay=0.0, bytes_per_second=None):
        self.target = port
        self.delay, self.rate = delay, bytes_per_second
        self.up = threading.Event()  # towards the target
        self.down = threading.Event()
        self.up.set()
        self.down.set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, up=True, down=True):
        if up:
            self.up.clear()
        if down:
            self.down.clear()

    def heal(self):
        self.up.set()
        self.down.set()

    def close(self):
        self.heal()
        self.server.close()

    def _accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for source, sink, gate in ((near, far, self.up),
                                       (far, near, self.down)):
                threading.Thread(target=self._pump, daemon=True,
                                 args=(source, sink, gate)).start()

    def _pump(self, source, sink, gate):
        try:
            while data := source.recv(65536):
                gate.wait()
                if self.delay or self.rate:
                    time.sleep(self.delay + len(data) / (self.rate or 1e12))
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Process:
    """A child whose output goes to a file."""

    def __init__(self, args, log, environment=None):
        self.log = log
        with log.open("ab") as out:
            self.child = subprocess.Popen(
                [str(arg) for arg in args], stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})})

    def alive(self):
        return self.child.poll() is None

    def send(self, number):
        self.child.send_signal(number)

    def kill(self):
        if self.alive():
            self.child.kill()
        return self.child.wait()

    def stop(self):
        if self.alive():
            self.child.send_signal(signal.SIGCONT)
            self.child.terminate()
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.child.kill()
        return self.child.wait()


class Cluster:
    """A coordinator, workers and the command line."""

    def __init__(self, folder, state=None, config=""):
        self.folder = pathlib.Path(folder)
        self.state = pathlib.Path(state or self.folder / "state")
        self.port = free_port()
        self.config = self.folder / "coordinator.textproto"
        self.config.write_text(TIMEOUTS + config)
        self.worker_config = self.folder / "worker.textproto"
        self.worker_config.write_text(TIMEOUTS)
        self.coordinator = None
        self.workers = {}
        self.relays = {}
        self.slow_file = self.folder / "slow"

    @contextlib.contextmanager
    def slowly(self):
        """Half a second is added to every step meanwhile: a job lasts until a
        test has done to it what it wants, however quick the machine is."""
        self.slow_file.touch()
        try:
            yield
        finally:
            self.slow_file.unlink()

    # -- processes ----------------------------------------------------------

    def coordinator_args(self):
        return ["--insecure", f"--listen=127.0.0.1:{self.port}"]

    def client_args(self):
        return [f"--address=127.0.0.1:{self.port}"]

    def start_coordinator(self, failpoints="", wait=True, environment=None):
        self.coordinator = Process(
            [COORDINATOR, f"--config={self.config}", *self.coordinator_args(),
             "--metrics-listen=off", "--health-listen=off",
             f"--state-dir={self.state}"],
            self.folder / "coordinator.log",
            {"CADRE_FAILPOINTS": failpoints, **(environment or {})})
        if wait:
            wait_for(self.serving, "the coordinator")

    def serving(self):
        if not self.coordinator.alive():
            raise AssertionError((self.folder / "coordinator.log").read_text())
        return self.cadre("list", "--timeout=1").returncode == 0

    def worker_environment(self, failpoints=""):
        return {"CADRE_FAILPOINTS":
                failpoints or f"worker.step=slow:{self.slow_file}"}

    def kill_coordinator(self):
        self.coordinator.kill()

    def start_worker(self, number, failpoints=""):
        relay = self.relays.get(number)
        if relay is None:
            relay = self.relays[number] = Relay(self.port)
        self.workers[number] = Process(
            [WORKER, f"--config={self.worker_config}", "--insecure",
             f"--coordinator=127.0.0.1:{relay.port}", "--device=cpu",
             f"--worker-id=test.{number}", "--metrics-listen=off",
             "--health-listen=off"], self.folder / f"worker-{number}.log",
            self.worker_environment(failpoints))

    def stop(self):
        for relay in self.relays.values():
            relay.heal()
        for worker in self.workers.values():
            worker.kill()
        if self.coordinator is not None:
            self.coordinator.stop()
        for relay in self.relays.values():
            relay.close()

    # -- the command line ---------------------------------------------------

    def cadre(self, *args):
        return subprocess.run(
            [str(CADRE), *map(str, self.client_args()), *map(str, args)],
            cwd=self.folder, capture_output=True, text=True,
            timeout=2 * PATIENCE_SECONDS, check=False)

    def call(self, method, fields):
        """A call with hand-written fields {number: text}, as a program of
        somebody else would send it: (grpc-status, body)."""
        message = b"".join(
            bytes([number << 3 | 2, len(text)]) + text.encode()
            for number, text in fields.items())
        result = subprocess.run(
            ["curl", "--silent", "--http2-prior-knowledge", "--max-time", "20",
             "-H", "content-type: application/grpc", "-H", "te: trailers",
             "--data-binary", "@-", "-o", "-", "-D", "/dev/stderr",
             f"http://127.0.0.1:{self.port}/cadre.v1.{method}"],
            input=b"\0" + len(message).to_bytes(4, "big") + message,
            capture_output=True, check=True)
        trailer = result.stderr.split(b"grpc-status: ")
        return (int(trailer[1].split()[0]) if len(trailer) > 1 else -1,
                result.stdout[5:])

    def json(self, *args):
        result = self.cadre("--json", *args)
        if result.returncode != 0:
            raise AssertionError(f"cadre {args}: {result.stderr}")
        return [json.loads(line) for line in result.stdout.splitlines()]

    def job(self, name):
        return self.json("get", name)[0]

    def step(self, name):
        return int(self.job(name).get("progress", {}).get("step", 0))

    def wait_state(self, name, *states):
        def ask():
            result = self.cadre("--json", "get", name)
            if result.returncode != 0:
                return None  # restarting
            job = json.loads(result.stdout)
            if job["state"] in TERMINAL and job["state"] not in states:
                raise AssertionError(json.dumps(job, indent=1))
            return job if job["state"] in states else None

        return wait_for(ask, f"{name} in {states}")

    # -- a job that trains --------------------------------------------------

    def write_inputs(self):
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(GOLDEN / name, model / name)
            (model / name).chmod(0o644)
        letters = [chr(c) for c in range(ord("!"), ord("~") + 1)]
        vocab = {t: i for i, t in enumerate([*letters, "\u0120", "\u010a"])}
        level = {"type": "ByteLevel", "add_prefix_space": False,
                 "trim_offsets": True, "use_regex": True}
        (model / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{
                "id": len(vocab), "content": "<|end|>", "single_word": False,
                "lstrip": False, "rstrip": False, "normalized": False,
                "special": True}],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None,
            "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": []}}))
        (model / "tokenizer_config.json").write_text(
            json.dumps({"eos_token": "<|end|>"}))
        (self.folder / "train.jsonl").write_text("".join(
            json.dumps({"text": f"line {i}: the quick brown fox jumps over the "
                                f"lazy dog {i % 7} times"}) + "\n"
            for i in range(64)))

    def write_job(self, name, workers, steps, every=5):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"""version: 1
name: {name}
model: {{path: model, dtype: fp32}}
data: {{train: [train.jsonl], max_seq_len: 128}}
tuning: {{lora_rank: 4, lora_target_modules: [q_proj, experts]}}
training:
  max_steps: {steps}
  global_batch_size: 4
  micro_batch_size: 1
  learning_rate: 0.01
  deterministic: true
checkpoint: {{every_steps: {every}}}
resources: {{backend: cpu, workers: {workers}}}
""")
        return path

    def submit(self, name, workers, steps, every=5):
        result = self.cadre("submit", self.write_job(name, workers, steps,
                                                     every))
        if result.returncode != 0:
            raise AssertionError(result.stderr)

    def losses(self, name):
        """Loss by step, as the coordinator has kept it."""
        series = self.json("series", name, "loss")
        return {int(p["step"]): p["value"] for p in series[0]["points"]}
