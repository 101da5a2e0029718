"""A small service manager that does what systemd does with our units.

It reads the shipped unit files and obeys ExecStartPre, ExecStart, Type=notify,
Restart, RestartSec, RestartPreventExitStatus, WatchdogSec, TimeoutStartSec,
TimeoutStopSec and KillMode=mixed, for tests on machines where systemd is not
the init. Sandboxing is left to systemd_test.sh.

    unit = supervisor.Unit(file, instance="0", arguments=[...], ...)
    unit.start()    # until READY=1, as systemctl start
    unit.stop()     # SIGTERM, then wait; SIGKILL after TimeoutStopSec
    unit.restart()
"""

import os
import select
import signal
import socket
import subprocess
import threading
import time


def parse(file):
    """Settings of [Service]; the last of a name counts, ExecStartPre adds."""
    settings, section = {}, None
    for line in file.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif section == "Service" and "=" in line and line[0] not in "#;":
            name, value = line.split("=", 1)
            settings[name] = value
    return settings


class Unit:
    """One unit and the thread that looks after its process."""

    def __init__(self, file, folder, programs, configs, arguments=(),
                 instance="", environment=None):
        """programs, configs: what stands in for /usr/bin and /etc/cadre."""
        self.name = file.stem.rstrip("@") + instance
        self.settings = parse(file)
        if self.settings["Type"] != "notify":
            raise ValueError(f"{file}: Type={self.settings['Type']}")
        if self.settings["KillMode"] != "mixed":
            raise ValueError(f"{file}: KillMode={self.settings['KillMode']}")
        self.folder = folder
        self.instance = instance
        self.programs, self.configs = programs, configs
        self.arguments = list(arguments)
        self.environment = environment or {}
        self.log = folder / f"{self.name}.log"
        self.exits = []  # (status, why) of every process
        self.starts = 0
        self.status_texts = []
        self.process = None
        self._wanted = False
        self._ready = threading.Event()
        self._gone = threading.Event()
        self._gone.set()
        self._lock = threading.Lock()
        self._thread = None

    # -- as systemctl -------------------------------------------------------

    def start(self):
        """Returns when the process is ready; restarts it from then on."""
        self._ready.clear()
        self._gone.clear()
        self._wanted = True
        self._thread = threading.Thread(target=self._look_after, daemon=True)
        self._thread.start()
        self.wait_ready()

    def wait_ready(self):
        if not self._ready.wait(self._seconds("TimeoutStartSec")):
            raise AssertionError(f"{self.name} is not ready in time:\n"
                                 f"{self.log.read_text()[-2000:]}")

    def stop(self):
        """SIGTERM to the main process; True if it left in time, with 0."""
        self._wanted = False
        with self._lock:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
        in_time = self._gone.wait(self._seconds("TimeoutStopSec"))
        if not in_time:
            self.kill()  # KillMode=mixed: the whole group
            self._gone.wait()
        self._thread.join()
        return in_time and self.exits[-1][0] == 0

    def restart(self):
        clean = self.stop()
        self.start()
        return clean

    def kill(self, number=signal.SIGKILL):
        """As an accident: the manager starts it again."""
        self._ready.clear()
        with self._lock:
            if self.process is not None and self.process.poll() is None:
                os.killpg(self.process.pid, number)

    # -- the manager --------------------------------------------------------

    def _seconds(self, name):
        return float(self.settings[name])

    def _command(self, line):
        line = line.replace("%i", self.instance)
        for name, path in self.programs.items():
            line = line.replace(f"/usr/bin/{name}", str(path))
        for name, path in self.configs.items():
            line = line.replace(f"/etc/cadre/{name}", str(path))
        return line.split() + self.arguments

    def _look_after(self):
        while self._wanted:
            status, why = self._run_once()
            self.exits.append((status, why))
            prevented = self.settings.get("RestartPreventExitStatus", "")
            if (not self._wanted or self.settings["Restart"] != "always" or
                    str(status) in prevented.split()):
                break
            time.sleep(self._seconds("RestartSec"))
        self._gone.set()

    def _run_once(self):
        """One life of the process: (exit status, why the manager killed)."""
        check = subprocess.run(self._command(self.settings["ExecStartPre"]),
                               cwd=self.folder, capture_output=True, text=True,
                               check=False)
        if check.returncode != 0:
            return check.returncode, check.stderr
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = f"cadre-unit-{os.getpid()}-{self.name}-{self.starts}"
        notify.bind("\0" + address)
        environment = {
            **os.environ, **self.environment,
            "NOTIFY_SOCKET": "@" + address,
            "WATCHDOG_USEC": str(int(self._seconds("WatchdogSec") * 1e6)),
            "OPENBLAS_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            with self._lock:
                self.process = subprocess.Popen(
                    self._command(self.settings["ExecStart"]),
                    cwd=self.folder, env=environment, stdout=log, stderr=log,
                    start_new_session=True)
                self.starts += 1
        with notify:
            why = self._listen(notify)
        return self.process.wait(), why

    def _listen(self, notify):
        """Until the process is gone."""
        alive_at = time.monotonic()
        deadline = alive_at + self._seconds("TimeoutStartSec")
        ready = False
        while self.process.poll() is None:
            if select.select([notify], [], [], 0.05)[0]:
                for line in notify.recv(65536).decode().splitlines():
                    key, _, value = line.partition("=")
                    if key == "READY":
                        ready, alive_at = True, time.monotonic()
                        self._ready.set()
                    elif key == "WATCHDOG":
                        alive_at = time.monotonic()
                    elif key == "EXTEND_TIMEOUT_USEC":
                        deadline = time.monotonic() + int(value) / 1e6
                    elif key == "STATUS":
                        self.status_texts.append(value)
            now = time.monotonic()
            if not ready and now > deadline:
                os.killpg(self.process.pid, signal.SIGKILL)
                return "TimeoutStartSec"
            if ready and now > alive_at + self._seconds("WatchdogSec"):
                self._ready.clear()
                os.killpg(self.process.pid, signal.SIGABRT)
                os.killpg(self.process.pid, signal.SIGCONT)
                return "WatchdogSec"
        self._ready.clear()
        return ""
