"""A job under daemons that are stopped, drained, killed and hang meanwhile.

The shipped systemd units run coordinator and workers (supervisor.py does what
systemd would). Whatever happens to them, the job ends with the very losses of
one that nobody disturbed.
"""

import json
import os
import pathlib
import shutil
import signal
import tempfile
import unittest

from tests.deploy import supervisor
from tests.fault import cluster

UNITS = pathlib.Path("WORKSPACE").resolve().parent / "deploy/systemd"
# At half a second each, enough to last through everything that happens.
STEPS = 240
WORKERS = 3


class Fleet(cluster.Cluster):
    """A cluster whose processes are units."""

    def __init__(self, folder):
        super().__init__(folder)
        self.coordinator_config = self.folder / "coordinator-unit.textproto"
        self.coordinator_config.write_text(
            cluster.TIMEOUTS + "insecure: true metrics_listen: \"off\" "
            f"health_listen: \"off\" listen: \"127.0.0.1:{self.port}\" "
            f"state_dir: \"{self.state}\"\n")
        self.worker_config.write_text(
            cluster.TIMEOUTS + "insecure: true metrics_listen: \"off\" "
            "health_listen: \"off\" device: \"cpu\" "
            f"coordinator: \"127.0.0.1:{self.port}\"\n")
        self.units = []
        self.control = self.unit("cadre-coordinator.service")
        self.fleet = [self.unit("cadre-worker-cpu@.service", str(index))
                      for index in range(WORKERS)]

    def unit(self, file, instance=""):
        arguments = [f"--worker-id=unit.{instance}"] if instance else []
        made = supervisor.Unit(
            UNITS / file, self.folder,
            {"cadre-coordinator": cluster.COORDINATOR,
             "cadre-worker": cluster.WORKER},
            {"coordinator.textproto": self.coordinator_config,
             "worker-cpu.textproto": self.worker_config},
            arguments, instance, self.worker_environment())
        self.units.append(made)
        return made

    def stop(self):
        for unit in reversed(self.units):
            if unit.starts:
                unit.settings["TimeoutStopSec"] = "20"
                unit.stop()


class SupervisionTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.made = Fleet(self.folder)
        self.addCleanup(self.made.stop)
        self.made.write_inputs()
        self.made.control.start()
        for unit in self.made.fleet:
            unit.start()

    def further(self, name):
        """Waits until the job has trained on."""
        begin = self.made.step(name)
        cluster.wait_for(lambda: self.made.step(name) > begin,
                         f"{name} past step {begin}")

    def member(self, name):
        """A unit of the job's present attempt."""
        job = self.made.job(name)
        worker = job["attempts"][-1]["workers"][-1]
        return self.made.fleet[int(worker.rpartition(".")[2])]

    def test_the_job_ends_with_the_losses_of_an_undisturbed_one(self):
        made = self.made
        made.submit("calm", 2, STEPS)
        cluster.wait_for(
            lambda: made.job("calm")["state"] in cluster.TERMINAL,
            "the end of the undisturbed job", 600)
        made.wait_state("calm", "JOB_STATE_SUCCEEDED")
        with made.slowly():
            self.shake(made)
        cluster.wait_for(
            lambda: made.job("shaken")["state"] in cluster.TERMINAL,
            "the end of the job", 600)
        job = made.wait_state("shaken", "JOB_STATE_SUCCEEDED")
        self.assertGreaterEqual(len(job["attempts"]), 4)
        calm, shaken = made.losses("calm"), made.losses("shaken")
        self.assertEqual(set(calm), set(range(1, STEPS + 1)))
        self.assertEqual(calm[STEPS], shaken[STEPS])
        self.assertEqual({step: calm[step] for step in shaken}, shaken)
        # A killed worker loses what it has not reported; steps after the last
        # save are done again.
        self.assertGreaterEqual(len(shaken), 0.9 * STEPS)
        for unit in made.units:
            for _, why in unit.exits:
                self.assertEqual(why, "", unit.name)

    def shake(self, made):
        """Submits a job and disturbs the daemons in every way that is ours."""
        made.submit("shaken", 2, STEPS)
        made.wait_state("shaken", "JOB_STATE_RUNNING")
        cluster.wait_for(lambda: made.json("checkpoints", "shaken"),
                         "a checkpoint")

        with self.subTest("systemctl restart cadre-coordinator"):
            attempts = len(made.job("shaken")["attempts"])
            self.assertTrue(made.control.restart(), made.control.exits)
            self.further("shaken")
            self.assertEqual(len(made.job("shaken")["attempts"]), attempts)

        with self.subTest("the coordinator is killed"):
            starts = made.control.starts
            made.control.kill()
            made.control.wait_ready()
            self.assertEqual(made.control.starts, starts + 1)
            self.further("shaken")
            self.assertEqual(len(made.job("shaken")["attempts"]), attempts)

        with self.subTest("systemctl restart of a worker"):
            unit = self.member("shaken")
            self.assertTrue(unit.restart(), unit.log.read_text()[-2000:])
            made.wait_state("shaken", "JOB_STATE_RUNNING",
                            "JOB_STATE_SUCCEEDED")
            moved = made.job("shaken")["attempts"]
            self.assertGreater(len(moved), attempts)
            # It saved before it left: no failure, and no step is done again.
            self.assertEqual(moved[attempts - 1]["cause"],
                             "FAILURE_CAUSE_DRAINED",
                             json.dumps(moved, indent=1))
            self.assertEqual(moved[attempts - 1]["to_step"],
                             moved[attempts]["from_step"])
            self.further("shaken")

        with self.subTest("cadre drain, stop, start, uncordon"):
            unit = self.member("shaken")
            worker = f"unit.{unit.instance}"
            drained = made.cadre("drain", worker, "--wait")
            self.assertEqual(drained.returncode, 0, drained.stderr)
            self.assertTrue(unit.stop(), unit.log.read_text()[-2000:])
            self.further("shaken")
            unit.start()
            freed = made.cadre("uncordon", worker)
            self.assertEqual(freed.returncode, 0, freed.stderr)

        with self.subTest("a worker is killed"):
            unit = self.member("shaken")
            starts = unit.starts
            unit.kill()
            unit.wait_ready()
            self.assertEqual(unit.starts, starts + 1)
            self.further("shaken")

    def test_what_hangs_is_ended_by_the_watchdog_and_started_again(self):
        unit = self.made.fleet[0]
        self.assertTrue(unit.stop())
        unit.settings["WatchdogSec"] = "5"
        unit.start()
        starts = unit.starts
        unit.process.send_signal(signal.SIGSTOP)
        cluster.wait_for(lambda: unit.starts > starts, "a new process")
        unit.wait_ready()
        self.assertEqual(unit.exits[-1][1], "WatchdogSec")

    def test_a_wrong_configuration_is_not_tried_again(self):
        unit = self.made.fleet[0]
        self.assertTrue(unit.stop())
        before = unit.starts
        good = self.made.worker_config.read_text()
        self.made.worker_config.write_text(good + "no_such_field: 1\n")
        unit.settings["TimeoutStartSec"] = "3"
        with self.assertRaises(AssertionError):
            unit.start()
        self.assertEqual(unit.exits[-1][0], 78)
        self.assertEqual(unit.starts, before)
        self.made.worker_config.write_text(good)
        unit.settings["TimeoutStartSec"] = "60"
        unit.start()


if __name__ == "__main__":
    unittest.main()
