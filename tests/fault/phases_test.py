"""A worker killed in each phase of a job; what supervises it starts it again.

Each job must train again within 30 s and end with the loss of an undisturbed
one. CADRE_PHASES=worker.save,worker.export runs some of them.
"""

import json
import os
import pathlib
import shutil
import tempfile
import time
import unittest

from tests.fault import cluster, history

STEPS, EVERY = 12, 4
RESUME_SECONDS = 30

# point, at which pass, the rank that dies
PHASES = (
    ("worker.planned", 1, 0),
    ("worker.prepare_data", 1, 1),
    ("worker.prepare_model", 1, 0),
    ("worker.rendezvous", 1, 1),
    ("worker.ready", 1, 0),
    ("worker.step", 1, 1),
    ("worker.step", 7, 0),
    ("worker.collective", 60, 1),
    ("worker.save", 2, 1),
    ("checkpoint.mid_shard", 3, 0),
    ("worker.saved", 2, 1),
    # Of saves closer together than two Syncs only the newest may be sealed, so
    # that nothing but one seal is certain.
    ("checkpoint.before_seal", 1, 0),
    ("checkpoint.after_seal", 1, 0),
    ("worker.steps_done", 1, 1),
    ("worker.export", 1, 0),
    ("worker.exported", 1, 0),
)


class PhasesTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(
            tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Which worker is which rank is known: the first by name is rank 0.
        self.made = cluster.Cluster(
            self.folder, config="cordon_after_failures: 100")
        self.addCleanup(self.made.stop)
        self.made.write_inputs()
        self.made.start_coordinator()

    def kill_in(self, name, point, at, rank):
        """Runs a job whose `rank` dies at the point; seconds to its next step.
        """
        made = self.made
        former = {w["incarnation"] for w in made.json("workers")}
        for number in (0, 1):
            made.start_worker(
                number, f"{point}=kill@{at}" if number == rank else "")
        # Else the job may be given to the last one's dead, whose leases live.
        cluster.wait_for(
            lambda: not former & {w["incarnation"]
                                  for w in made.json("workers")},
            "both workers to join")
        made.submit(name, 2, STEPS, EVERY)
        victim = made.workers[rank]
        cluster.wait_for(lambda: not victim.alive(), f"death in {point}")
        died = time.monotonic()
        made.start_worker(rank)

        def goes_on():
            job = made.job(name)
            last = job["attempts"][-1]
            return (int(last["epoch"]) > 1 and
                    (job["state"] in cluster.TERMINAL or
                     (job["state"] == "JOB_STATE_RUNNING" and
                      int(job["progress"].get("step", 0)) >
                      int(last.get("from_step", 0)))))

        cluster.wait_for(goes_on, f"{name} to go on")
        resumed = time.monotonic() - died
        job = made.wait_state(name, "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 2, json.dumps(job, indent=1))
        # What is heard first: the supervisor's new process, or the peer whose
        # collective broke. Both draw on the same budget.
        self.assertIn(job["attempts"][0]["cause"],
                      ("FAILURE_CAUSE_WORKER_LOST",
                       "FAILURE_CAUSE_COMMUNICATION"))
        return resumed

    def test_it_goes_on_and_ends_the_same(self):
        made = self.made
        for number in (0, 1):
            made.start_worker(number)
        made.submit("calm", 2, STEPS, EVERY)
        made.wait_state("calm", "JOB_STATE_SUCCEEDED")
        for worker in made.workers.values():
            worker.kill()
        calm = made.losses("calm")
        chosen = os.environ.get("CADRE_PHASES", "").split(",")
        names = ["calm"]
        for number, (point, at, rank) in enumerate(PHASES):
            if chosen != [""] and point not in chosen:
                continue
            with self.subTest(point=point, at=at):
                names.append(f"killed-{number}")
                try:
                    seconds = self.kill_in(names[-1], point, at, rank)
                finally:
                    for worker in made.workers.values():
                        worker.kill()
                print(f"{point}@{at}: trains again after {seconds:.1f} s",
                      flush=True)
                self.assertLess(seconds, RESUME_SECONDS)
                self.assertEqual(made.losses(names[-1])[STEPS], calm[STEPS])
        made.kill_coordinator()
        history.check(made.state, names)


if __name__ == "__main__":
    unittest.main()
