"""Daemons in network namespaces of their own, joined by a router that can drop.

    network.enter()  # before any thread: runs the program anew in a namespace

The program's own namespace has the coordinator (10.77.0.1) and is the router;
each worker lives in one more, behind a veth pair. Dropping is a routing rule
for one source and one destination, so it works in one direction and needs
neither a packet filter nor a right outside of the namespaces: any user who may
make user namespaces can run it.
"""

import os
import subprocess
import sys

from tests.fault import cluster

COORDINATOR_ADDRESS = "10.77.0.1"
INSIDE = "CADRE_TEST_IN_NAMESPACE"


def _ip(*args, pid=None):
    inside = ["nsenter", "-t", str(pid), "-n"] if pid else []
    subprocess.run([*inside, "ip", *map(str, args)], check=True,
                   capture_output=True)


def enter():
    """Why it is not possible here; None: the program runs in a namespace."""
    if os.environ.get(INSIDE):
        return None
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    probe = ("ip link set lo up && ip link add a0 type veth peer name a1 && "
             "ip rule add pref 10 from 10.77.9.1 to 10.77.9.2 blackhole && "
             "echo 1 > /proc/sys/net/ipv4/ip_forward")
    tried = subprocess.run([*unshare, "sh", "-c", probe], capture_output=True,
                           text=True, check=False)
    if tried.returncode != 0:
        return f"no network namespaces here: {tried.stderr.strip()}"
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*unshare, sys.executable, "-m",
                          sys.modules["__main__"].__spec__.name, *sys.argv[1:]])


def become_router():
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", f"{COORDINATOR_ADDRESS}/32", "dev", "lo")
    with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as out:
        out.write("1")
    # Rules of ours must come before the table of local addresses.
    _ip("rule", "add", "pref", 100, "lookup", "local")
    _ip("rule", "del", "pref", 0)


class Host:
    """A namespace with one address, kept by a process that sleeps."""

    def __init__(self, number):
        self.name = f"host{number}"
        self.address = f"10.77.{number}.2"
        router = f"10.77.{number}.1"
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "setpriv", "--pdeathsig", "KILL", "sh", "-c",
             "echo; exec sleep infinity"],
            stdout=subprocess.PIPE)
        self.keeper.stdout.readline()
        pid = self.keeper.pid
        _ip("link", "add", f"v{number}", "type", "veth", "peer", "name",
            "eth0", "netns", pid)
        _ip("addr", "add", f"{router}/24", "dev", f"v{number}")
        _ip("link", "set", f"v{number}", "up")
        _ip("link", "set", "lo", "up", pid=pid)
        _ip("addr", "add", f"{self.address}/24", "dev", "eth0", pid=pid)
        _ip("link", "set", "eth0", "up", pid=pid)
        _ip("route", "add", "default", "via", router, pid=pid)
        self.interface = f"v{number}"

    def command(self, args):
        return ["nsenter", "-t", self.keeper.pid, "-n", *args]

    def close(self):
        self.keeper.kill()
        self.keeper.wait()
        self.keeper.stdout.close()
        subprocess.run(["ip", "link", "del", self.interface], check=False,
                       capture_output=True)


def drop(source, target):
    _ip("rule", "add", "pref", 10, "from", source, "to", target, "blackhole")


def drop_both(one, other):
    drop(one, other)
    drop(other, one)


def heal():
    while subprocess.run(["ip", "rule", "del", "pref", "10"], check=False,
                         capture_output=True).returncode == 0:
        pass


class NetCluster(cluster.Cluster):
    """A coordinator and workers that meet on real interfaces, over TLS."""

    def __init__(self, folder):
        super().__init__(folder)
        self.hosts = {}
        self.names = ["server", "ops"]
        subprocess.run(
            ["bash", str(cluster.ROOT / "tools/dev_ca.sh"), self.folder,
             f"server=IP:{COORDINATOR_ADDRESS}", "ops=DNS:ops"], check=True,
            capture_output=True)
        (self.folder / "access").write_text(
            "certificates { san: 'ops' role: ROLE_ADMIN }\n" + "".join(
                f"certificates {{ san: 'host{n}' role: ROLE_WORKER }}\n"
                for n in range(1, 5)))
        self.config.write_text(cluster.TIMEOUTS + f"""
tls {{
  certificate_file: "{self.folder}/server.pem"
  key_file: "{self.folder}/server.key"
  client_ca_file: "{self.folder}/ca.pem"
}}
access_file: "{self.folder}/access"
""")

    def _as(self, name):
        return [f"--ca={self.folder}/ca.pem", f"--cert={self.folder}/{name}.pem",
                f"--key={self.folder}/{name}.key"]

    def coordinator_args(self):
        return [f"--listen={COORDINATOR_ADDRESS}:{self.port}"]

    def client_args(self):
        return [f"--address={COORDINATOR_ADDRESS}:{self.port}", *self._as("ops")]

    def start_worker(self, number, failpoints=""):
        host = self.hosts.get(number)
        if host is None:
            host = self.hosts[number] = Host(number)
            subprocess.run(
                ["bash", str(cluster.ROOT / "tools/dev_ca.sh"), self.folder,
                 f"{host.name}=DNS:{host.name}"], check=True,
                capture_output=True)
        self.workers[number] = cluster.Process(
            host.command([
                cluster.WORKER, f"--config={self.worker_config}",
                f"--coordinator={COORDINATOR_ADDRESS}:{self.port}",
                *self._as(host.name), "--device=cpu",
                f"--worker-id={host.name}.0", f"--data-address={host.address}",
                "--metrics-listen=off", "--health-listen=off"]),
            self.folder / f"worker-{number}.log",
            self.worker_environment(failpoints))

    def stop(self):
        heal()
        super().stop()
        for host in self.hosts.values():
            host.close()
