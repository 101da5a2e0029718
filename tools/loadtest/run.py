"""Starts a coordinator, loads it, prints latencies and its memory.

    bazel run -c opt //tools/loadtest:run -- \\
        --workers=1000 --rate=100 --seconds=60 --fill=10000

Says of each target whether it was met; they are meant for that command, two
processors and nothing else on the machine. CADRE_LOADTEST_STATE names a folder
for the coordinator's state; on a tmpfs the figures are without the disk's share.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from tests.fault import cluster

# Milliseconds of the 99th percentile, by what is called.
TARGETS = {"CreateJob": 20, "Sync": 10, "List 50": 50, "List 1000": 50}
MEMORY_KIB = 300 * 1024
LOADTEST = pathlib.Path.cwd() / "tools/loadtest/loadtest"


def verdict(what, value, target, unit):
    print(f"{what}: {value:g} {unit}, target {target:g}: "
          f"{'met' if value < target else 'MISSED'}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        made = cluster.Cluster(
            folder, state=os.environ.get("CADRE_LOADTEST_STATE"))
        # The timeouts of a real installation.
        made.config.write_text(
            "max_queued_jobs: 1000000 backups { every: '0' }\n")
        made.write_inputs()
        job = made.write_job("any", 1, 2)
        # A name would be taken from the second job on.
        job.write_text("".join(line for line in job.read_text().splitlines(True)
                               if not line.startswith("name:")))
        made.start_coordinator()
        try:
            before = os.getloadavg()[0]
            begun = time.monotonic()
            output = subprocess.run(
                [str(LOADTEST), f"--address=127.0.0.1:{made.port}",
                 f"--job={job}", f"--base-dir={folder}", *sys.argv[1:]],
                check=True, stdout=subprocess.PIPE, text=True).stdout
            print(output, end="")
            for what, target in TARGETS.items():
                found = re.search(rf"^{what} .*p99 +([0-9.]+)", output, re.M)
                if found:
                    verdict(f"p99 of {what}", float(found[1]), target, "ms")
            status = pathlib.Path(
                f"/proc/{made.coordinator.child.pid}/status").read_text()
            for line in status.splitlines():
                if line.startswith(("VmHWM", "VmRSS", "Threads")):
                    print(line)
                if line.startswith("VmHWM"):
                    verdict("memory", int(line.split()[1]), MEMORY_KIB, "KiB")
            print(f"load average {before:.1f} before, "
                  f"{os.getloadavg()[0]:.1f} after, {os.cpu_count()} "
                  f"processors, {time.monotonic() - begun:.0f} s")
        finally:
            made.stop()


if __name__ == "__main__":
    main()
