"""The long form: random kills of the coordinator under load.

    bazel run //tests/fault:long -- --cycles=1000 --seed=7

Clients submit, pause, resume and cancel all the time, and workers train what
they submit, while the coordinator is killed at a random moment or journal step,
again and again. A call that was answered OK must have happened, once; no job
may notice (an attempt ends with its job, or because a client paused it);
history.py looks for everything else. The same seed gives the same plan of kills
and calls (the machine's timing is its own).
"""

import argparse
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid

from tests.fault import cluster, history

POINTS = ("before_begin", "mid_batch", "before_commit", "after_commit",
          "before_reply")
# How long a coordinator may take to get to its end on a machine that is busy.
LIFE_SECONDS = 20


class Client(threading.Thread):
    """Submits and changes jobs until told to stop."""

    def __init__(self, made, number, seed, stop):
        super().__init__(daemon=True)
        self.made, self.stop = made, stop
        self.random = random.Random(seed * 1000 + number)
        self.number = number
        self.acknowledged = []
        self.calls = 0
        self.failure = None

    def run(self):
        try:
            self.submit_and_change()
        except Exception as error:  # for the main thread to raise
            self.failure = error

    def submit_and_change(self):
        while not self.stop.is_set():
            self.calls += 1
            name = f"c{self.number}-{self.calls}"
            job = self.made.write_job(name, 1, 2)
            args = ("submit", job, f"--request-id={uuid.uuid4()}",
                    "--timeout=2")
            # Repeated with the same id until it is answered.
            while not self.stop.is_set():
                result = self.made.cadre(*args)
                if result.returncode == 0:
                    self.acknowledged.append(name)
                    break
                if result.returncode not in (8, 10):
                    raise AssertionError(result.stderr)
            job.unlink(missing_ok=True)
            if self.acknowledged and self.random.random() < 0.5:
                verb = self.random.choice(("pause", "resume", "cancel"))
                self.made.cadre(verb, self.random.choice(self.acknowledged),
                                "--timeout=2")


def run(cycles, minutes, seed, clients, workers, folder):
    made = cluster.Cluster(folder, config="backups { every: '0' } "
                                          "max_queued_jobs: 1000000")
    made.write_inputs()
    plan = random.Random(seed)
    stop = threading.Event()
    threads = [Client(made, n, seed, stop) for n in range(clients)]
    started = time.monotonic()
    reached = 0  # failpoints

    def answered():
        return sum(len(t.acknowledged) for t in threads)

    try:
        made.start_coordinator()
        for number in range(workers):
            made.start_worker(number)
        for thread in threads:
            thread.start()
        for cycle in range(cycles):
            if time.monotonic() - started > minutes * 60:
                cycles = cycle
                break
            if plan.random() < 0.5:
                made.kill_coordinator()
                before = answered()
                made.start_coordinator(wait=False)
                # Under load from the first call that it answers on.
                end = time.monotonic() + LIFE_SECONDS
                while answered() == before and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(plan.uniform(0, 0.3))
            else:
                made.kill_coordinator()
                made.start_coordinator(
                    f"journal.{plan.choice(POINTS)}=kill@{plan.randint(1, 15)}",
                    wait=False)
                end = time.monotonic() + LIFE_SECONDS
                while made.coordinator.alive() and time.monotonic() < end:
                    time.sleep(0.01)
                reached += not made.coordinator.alive()
            for thread in threads:
                if thread.failure is not None:
                    raise thread.failure
            if cycle % 100 == 99:
                print(f"{cycle + 1} cycles, "
                      f"{sum(len(t.acknowledged) for t in threads)} jobs, "
                      f"{time.monotonic() - started:.0f} s", flush=True)
        made.kill_coordinator()
        made.start_coordinator()
        stop.set()
        for thread in threads:
            thread.join(60)
        acknowledged = [n for t in threads for n in t.acknowledged]
        for worker in made.workers.values():
            if not worker.alive():
                raise AssertionError(worker.log.read_text()[-2000:])
        made.stop()
        counts = history.check(made.state, acknowledged, only_coordinator=True)
        begun = history.starts(
            worker.log for worker in made.workers.values())
        twice = [key for key, times in begun.items() if times > 1]
        if twice:
            raise AssertionError(f"trained twice (job, attempt, rank): {twice}")
        print(f"{cycles} cycles ({reached} at a journal step), seed {seed}: "
              f"{len(acknowledged)} acknowledged "
              f"jobs, {counts['jobs']} jobs and {counts['events']} events in "
              f"the journal, {counts['attempts']} attempts and "
              f"{counts['ended'].get('SUCCEEDED', 0)} jobs trained to the end "
              f"on {workers} workers, no promise broken, "
              f"{time.monotonic() - started:.0f} s")
        return len(acknowledged)
    finally:
        stop.set()
        made.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e6,
                        help="fewer cycles where these are over")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cadre-kills-"))
    try:
        run(args.cycles, args.minutes, args.seed, args.clients, args.workers,
            folder)
    except BaseException:
        print(f"state and logs are kept in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
