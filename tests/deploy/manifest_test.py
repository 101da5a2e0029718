"""Kubernetes manifests against the binaries: flags, configurations, ports.

manifest_test.py COORDINATOR WORKER OVERLAY.yaml...
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

COORDINATOR, WORKER = sys.argv[1:3]
# Image name -> program.
PROGRAMS = {"cadre/coordinator": COORDINATOR, "cadre/worker-cpu": WORKER,
            "cadre/worker-cuda": WORKER}
LISTEN = {"api": "listen", "health": "health_listen",
          "metrics": "metrics_listen"}
wrong = []


def say(where, text):
    wrong.append(f"{where}: {text}")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def field(config, name):
    found = re.search(rf'^{name}: "([^"]*)"', config, re.M)
    return found and found[1]


def check_container(where, container, pod, maps, objects):
    program = PROGRAMS[container["image"].split(":")[0]]
    help_text = run(program, "--help").stdout
    config_path = None
    for argument in container.get("args", []):
        flag, _, value = argument.partition("=")
        if not re.search(rf"(^|\s){re.escape(flag)}\b", help_text):
            say(where, f"{pathlib.Path(program).name} has no flag {flag}")
        if flag == "--config":
            config_path = pathlib.PurePosixPath(value)
        for variable in re.findall(r"\$\((\w+)\)", argument):
            if variable not in [e["name"] for e in container.get("env", [])]:
                say(where, f"{argument}: {variable} is not in env")
    volumes = {v["name"]: v for v in pod["volumes"]}
    volumes |= {t["metadata"]["name"]: {"claim": True}
                for t in objects.get("templates", [])}
    mounts = {}
    for mount in container["volumeMounts"]:
        if mount["name"] not in volumes:
            say(where, f"mount {mount['name']} has no volume")
        mounts[pathlib.PurePosixPath(mount["mountPath"])] = \
            volumes.get(mount["name"], {})
    name = mounts[config_path.parent]["configMap"]["name"]
    config = maps[name][config_path.name]
    # Every absolute path in the configuration lies in a mount.
    for path in re.findall(r'"(/[^"]*)"', config):
        parents = [pathlib.PurePosixPath(path),
                   *pathlib.PurePosixPath(path).parents]
        if not any(p in mounts for p in parents):
            say(where, f"{name}: {path} lies in no mount")
    if program == COORDINATOR:
        listed = mounts[pathlib.PurePosixPath("/etc/cadre/access")]
        text = maps[listed["configMap"]["name"]]["access.textproto"]
        check_config(where, program, config, text)
    else:
        check_config(where, program, config, None)
    for port in container["ports"]:
        listen = LISTEN.get(port["name"])
        if listen and not field(config, listen).endswith(
                f":{port['containerPort']}"):
            say(where, f"port {port['name']} {port['containerPort']} is not "
                f"{listen} {field(config, listen)}")
    health = field(config, "health_listen").split(":")[1]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if str(container[probe]["grpc"]["port"]) != health:
            say(where, f"{probe} asks another port than {health}")
    security = container["securityContext"]
    if security["allowPrivilegeEscalation"] or \
            not security["readOnlyRootFilesystem"] or \
            security["capabilities"]["drop"] != ["ALL"] or \
            not pod["securityContext"]["runAsNonRoot"]:
        say(where, "may do more than it needs")


def check_config(where, program, config, access):
    """--check-config, with stand-ins for the files that secrets bring."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run("openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days",
            "2", "-subj", "/CN=x", "-keyout", str(folder / "tls.key"), "-out",
            str(folder / "tls.crt"))
        (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
        if access is not None:
            (folder / "access.textproto").write_text(access)
        local = re.sub(r'"/etc/cadre/\w+/([^"]*)"', rf'"{folder}/\1"', config)
        file = folder / "config.textproto"
        file.write_text(local)
        result = run(program, f"--config={file}", "--check-config")
        if result.returncode != 0:
            say(where, f"--check-config: {result.stderr.strip()}")


def check_overlay(path):
    objects = [o for o in yaml.safe_load_all(path.read_text()) if o]
    maps = {o["metadata"]["name"]: o["data"] for o in objects
            if o["kind"] == "ConfigMap"}
    ports = {}
    for o in objects:
        if o["kind"] not in ("StatefulSet", "DaemonSet"):
            continue
        where = f"{path.name}: {o['kind']} {o['metadata']['name']}"
        pod = o["spec"]["template"]["spec"]
        for container in pod["containers"]:
            check_container(where, container, pod, maps, {
                "templates": o["spec"].get("volumeClaimTemplates", [])})
            name = o["spec"]["template"]["metadata"]["labels"][
                "app.kubernetes.io/name"]
            ports.setdefault(name, set()).update(
                p["name"] for p in container["ports"])
    for o in objects:
        if o["kind"] == "Service":
            selected = o["spec"]["selector"]["app.kubernetes.io/name"]
            for port in o["spec"]["ports"]:
                if port["name"] not in ports.get(selected, ()):
                    say(path.name, f"Service {o['metadata']['name']}: no pod "
                        f"has a port {port['name']}")
    return len(objects)


count = sum(check_overlay(pathlib.Path(name)) for name in sys.argv[3:])
if wrong:
    sys.exit("\n".join(wrong))
print(f"{count} objects agree with the programs")
