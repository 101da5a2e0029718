"""Partitions between namespaces, with real interfaces and TLS."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

from tests.fault import cluster, history, network

COORDINATOR = network.COORDINATOR_ADDRESS


class NetworkTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(
            tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        made = self.made = network.NetCluster(self.folder)
        self.addCleanup(made.stop)
        made.write_inputs()
        made.start_coordinator()
        for number in (1, 2):
            made.start_worker(number)

    def test_cut_off_from_the_coordinator_a_job_runs_on(self):
        made = self.made
        with made.slowly():
            self.cut_the_coordinator_off(made)
        job = made.wait_state("far", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 1, json.dumps(job, indent=1))
        made.kill_coordinator()
        history.check(made.state, ["far"])

    def cut_the_coordinator_off(self, made):
        made.submit("far", 2, 150)
        made.wait_state("far", "JOB_STATE_RUNNING")
        # Rank 0, whose progress is seen, stays; the other's lease runs out.
        other = made.hosts[2].address
        cuts = (lambda: network.drop(other, COORDINATOR),
                lambda: network.drop(COORDINATOR, other),
                lambda: network.drop_both(other, COORDINATOR))
        for number, cut in enumerate(cuts):
            cut()
            cluster.wait_for(lambda: any(
                w["state"] == "STATE_UNREACHABLE"
                for w in made.json("workers")), f"cut {number} to be noticed")
            begin = made.step("far")
            cluster.wait_for(lambda b=begin: made.step("far") > b + 2,
                             f"the job to run on through cut {number}")
            network.heal()
            cluster.wait_for(lambda: all(
                w["state"] != "STATE_UNREACHABLE"
                for w in made.json("workers")), "the worker to be back")

    def test_cut_off_from_each_other_workers_try_again(self):
        made = self.made
        made.submit("calm", 2, 60)
        made.wait_state("calm", "JOB_STATE_SUCCEEDED")
        one, other = made.hosts[1].address, made.hosts[2].address
        with made.slowly():
            made.submit("split", 2, 60)
            made.wait_state("split", "JOB_STATE_RUNNING")
            cluster.wait_for(lambda: made.json("checkpoints", "split"),
                             "a checkpoint")
            network.drop_both(one, other)
        cluster.wait_for(
            lambda: made.job("split")["attempts"][0]["cause"] !=
            "FAILURE_CAUSE_UNSPECIFIED",
            "the attempt to fail")
        network.heal()
        job = made.wait_state("split", "JOB_STATE_SUCCEEDED")
        self.assertEqual(job["attempts"][0]["cause"],
                         "FAILURE_CAUSE_COMMUNICATION")
        self.assertEqual(made.losses("split")[60], made.losses("calm")[60])
        made.kill_coordinator()
        history.check(made.state, ["calm", "split"])

    def test_cut_off_from_all_is_no_verdict_on_anybody(self):
        made = self.made
        with made.slowly():
            made.submit("alone", 2, 150)
            made.wait_state("alone", "JOB_STATE_RUNNING")
            for host in made.hosts.values():
                network.drop_both(host.address, COORDINATOR)
            cluster.wait_for(lambda: all(
                w["state"] == "STATE_UNREACHABLE"
                for w in made.json("workers")), "both leases to run out")
            network.heal()
        job = made.wait_state("alone", "JOB_STATE_SUCCEEDED")
        self.assertEqual(len(job["attempts"]), 1, json.dumps(job, indent=1))
        made.kill_coordinator()
        history.check(made.state, ["alone"])


if __name__ == "__main__":
    why = network.enter()
    if why is None:
        network.become_router()
    else:
        NetworkTest = unittest.skip(why)(NetworkTest)
    unittest.main(verbosity=2)
