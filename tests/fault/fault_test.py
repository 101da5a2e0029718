"""Faults one by one, with real daemons. The short form; long.py has the rest."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest
import uuid

from tests.fault import cluster, history

JOURNAL_POINTS = ("before_begin", "mid_batch", "before_commit", "after_commit",
                  "before_reply")


class FaultTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(
            tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def make(self, workers=0, state=None, config=""):
        made = cluster.Cluster(self.folder, state, config)
        self.addCleanup(made.stop)
        made.write_inputs()
        made.start_coordinator()
        for number in range(workers):
            made.start_worker(number)
        return made

    def check(self, made, acknowledged=()):
        return history.check(made.state, acknowledged)


class CoordinatorKilled(FaultTest):

    def test_at_each_journal_step_a_retry_makes_one_job(self):
        made = self.make()
        made.kill_coordinator()
        acknowledged = []
        for number, point in enumerate(JOURNAL_POINTS):
            # The first commit of this life is the submission's or one before.
            made.start_coordinator(f"journal.{point}=kill@{number + 1}",
                                   wait=False)
            request = str(uuid.uuid4())
            job = made.write_job(f"job-{number}", 1, 4)
            made.cadre("submit", job, f"--request-id={request}", "--timeout=3")
            made.kill_coordinator()
            made.start_coordinator()
            result = made.cadre("submit", job, f"--request-id={request}")
            self.assertEqual(result.returncode, 0, result.stderr)
            acknowledged.append(f"job-{number}")
            made.kill_coordinator()
        made.start_coordinator()
        self.assertEqual(len(made.json("list", "--all")), len(JOURNAL_POINTS))
        self.check(made, acknowledged)

    def test_a_running_job_does_not_notice(self):
        made = self.make(workers=1)
        with made.slowly():
            made.submit("steady", 1, 60)
            made.wait_state("steady", "JOB_STATE_RUNNING")
            for _ in range(2):
                made.kill_coordinator()
                made.start_coordinator()
        job = made.wait_state("steady", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 1)
        self.check(made, ["steady"])


class WorkerFaults(FaultTest):

    def test_killed_while_training_it_ends_as_if_undisturbed(self):
        made = self.make(workers=2)
        made.submit("calm", 2, 24)
        made.wait_state("calm", "JOB_STATE_SUCCEEDED")
        with made.slowly():
            made.submit("shaken", 2, 24)
            made.wait_state("shaken", "JOB_STATE_RUNNING")
            cluster.wait_for(
                lambda: made.json("checkpoints", "shaken"), "a checkpoint")
            made.workers[1].kill()
        made.start_worker(1)
        job = made.wait_state("shaken", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 2, json.dumps(job, indent=1))
        self.assertEqual(job["attempts"][0]["cause"],
                         "FAILURE_CAUSE_WORKER_LOST")
        self.assertGreater(int(job["attempts"][1]["from_step"]), 0)
        calm, shaken = made.losses("calm"), made.losses("shaken")
        self.assertEqual(calm[24], shaken[24])
        self.check(made, ["calm", "shaken"])

    def test_stopped_past_its_lease_it_is_fenced_when_it_wakes(self):
        made = self.make(workers=2)
        with made.slowly():
            made.submit("lone", 1, 40)
            job = made.wait_state("lone", "JOB_STATE_RUNNING")
            number = int(job["attempts"][0]["workers"][0].split(".")[1])
            made.workers[number].send(signal.SIGSTOP)
        # Alone and silent, it is given a minute before it is held for lost.
        cluster.wait_for(
            lambda: len(made.job("lone")["attempts"]) == 2, "a new attempt",
            120)
        made.workers[number].send(signal.SIGCONT)
        job = made.wait_state("lone", "JOB_STATE_SUCCEEDED")
        self.assertNotEqual(job["attempts"][0]["workers"],
                            job["attempts"][1]["workers"])
        cluster.wait_for(
            lambda: all(w["state"] == "STATE_IDLE"
                        for w in made.json("workers")), "both to be idle")
        self.check(made, ["lone"])

    def test_cut_off_from_the_coordinator_a_job_runs_on(self):
        made = self.make(workers=2)
        with made.slowly():
            made.submit("far", 2, 60)
            made.wait_state("far", "JOB_STATE_RUNNING")
            for up, down in ((True, True), (True, False), (False, True)):
                made.relays[1].cut(up, down)
                step = made.step("far")
                cluster.wait_for(lambda s=step: made.step("far") > s + 2,
                                 "the job to run on")
                made.relays[1].heal()
        job = made.wait_state("far", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 1, json.dumps(job, indent=1))
        self.check(made, ["far"])


class Verbs(FaultTest):

    def test_duplicates_and_late_calls_leave_the_last_intended_state(self):
        made = self.make(workers=1)
        with made.slowly():
            made.submit("verbs", 1, 40)
            made.wait_state("verbs", "JOB_STATE_RUNNING")
            for verb in ("pause", "pause"):
                self.assertEqual(made.cadre(verb, "verbs").returncode, 0)
        made.wait_state("verbs", "JOB_STATE_PAUSED")
        for verb in ("resume", "resume"):
            self.assertEqual(made.cadre(verb, "verbs").returncode, 0)
        job = made.wait_state("verbs", "JOB_STATE_SUCCEEDED")
        self.assertGreater(int(job["attempts"][-1]["from_step"]), 0)
        self.assertEqual(made.cadre("pause", "verbs").returncode, 6)
        self.assertEqual(made.cadre("drain", "nobody").returncode, 3)
        self.assertEqual(made.cadre("delete", "verbs").returncode, 0)
        self.assertEqual(made.cadre("get", "verbs").returncode, 3)


class Calls(FaultTest):

    def test_many_retries_of_one_request_make_one_job(self):
        made = self.make()
        job = made.write_job("once", 1, 4)
        request = str(uuid.uuid4())
        children = [
            subprocess.Popen(
                [str(cluster.CADRE), *made.client_args(), "submit", str(job),
                 f"--request-id={request}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(20)]
        self.assertEqual({child.wait() for child in children}, {0})
        self.assertEqual(len(made.json("list", "--all")), 1)
        self.check(made, ["once"])

    def test_late_duplicates_act_no_more(self):
        made = self.make()
        made.submit("late", 1, 4)
        made.wait_state("late", "JOB_STATE_QUEUED")
        pause, resume = ({1: "jobs/late", 2: str(uuid.uuid4())}
                         for _ in range(2))
        self.assertEqual(made.call("JobService/PauseJob", pause)[0], 0)
        made.wait_state("late", "JOB_STATE_PAUSED")
        self.assertEqual(made.call("JobService/ResumeJob", resume)[0], 0)
        # The network delivers both once more, the older one last.
        self.assertEqual(made.call("JobService/ResumeJob", resume)[0], 0)
        self.assertEqual(made.call("JobService/PauseJob", pause)[0], 0)
        self.assertEqual(made.job("late")["state"], "JOB_STATE_QUEUED")
        # The same id with another body is a mistake of the caller's.
        again = {**pause, 4: "another reason"}
        self.assertNotEqual(made.call("JobService/PauseJob", again)[0], 0)
        self.check(made, ["late"])

    def test_over_a_slow_link_a_job_runs(self):
        made = self.make()
        made.relays[0] = cluster.Relay(made.port, delay=0.2,
                                       bytes_per_second=64 * 1024)
        made.start_worker(0)
        made.submit("slow", 1, 20)
        job = made.wait_state("slow", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 1, json.dumps(job, indent=1))
        self.check(made, ["slow"])


class Clock(FaultTest):

    def test_a_jump_of_a_day_moves_no_lease(self):
        library = next(pathlib.Path("/usr/lib").glob(
            "*/faketime/libfaketimeMT.so.1"), None)
        if library is None:
            self.skipTest("libfaketime is not installed")
        made = cluster.Cluster(self.folder)
        self.addCleanup(made.stop)
        made.write_inputs()
        offset = self.folder / "offset"
        offset.write_text("+0")
        made.start_coordinator(environment={
            "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
        made.start_worker(0)
        with made.slowly():
            made.submit("jumping", 1, 60)
            made.wait_state("jumping", "JOB_STATE_RUNNING")
            for jump in ("+1d", "-1d", "+0"):
                offset.write_text(jump)
                step = made.step("jumping")
                cluster.wait_for(lambda s=step: made.step("jumping") > s + 2,
                                 f"steps after {jump}")
                self.assertEqual({w["state"] for w in made.json("workers")},
                                 {"STATE_RUNNING"})
        job = made.wait_state("jumping", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 1, json.dumps(job, indent=1))
        self.check(made, ["jumping"])


class DiskFull(FaultTest):

    def test_new_work_stops_nothing_is_lost_and_room_heals(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(disk)],
            capture_output=True, check=False)
        if mount.returncode != 0:
            self.skipTest("mounting a small tmpfs is not permitted here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)],
                        check=False)
        made = self.make(workers=1, state=disk,
                         config=f"ballast_bytes: {2 << 20} "
                                "backups { every: '0' }")
        with made.slowly():
            made.submit("before", 1, 100)
            made.wait_state("before", "JOB_STATE_RUNNING")
            filler = disk / "filler"
            with filler.open("wb") as out:
                try:
                    while True:
                        out.write(b"x" * 65536)
                        out.flush()
                except OSError:
                    pass
            refused = cluster.wait_for(
                lambda: self.refusal(made, "during"), "a refusal")
            self.assertIn("disk", refused)
            # Reads go on, and so does the job.
            self.assertEqual(made.cadre("get", "before").returncode, 0)
            self.assertEqual(made.cadre("cancel", "before").returncode, 0)
        filler.unlink()
        cluster.wait_for(lambda: self.refusal(made, "after") is None,
                         "room again")
        self.check(made, ["before", "after"])

    def refusal(self, made, name):
        result = made.cadre("submit", made.write_job(name, 1, 2),
                            "--timeout=5")
        return None if result.returncode == 0 else result.stderr


if __name__ == "__main__":
    unittest.main()
