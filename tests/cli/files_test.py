"""A job's plan, its files and its end, with a real worker."""

import hashlib
import json
import unittest

from tests.cli import harness


class Files(harness.TestCase):

    def setUp(self):
        super().setUp()
        # The golden tokenizer's size; the weights do not fit it.
        self.write_model(vocab_size=50257)
        self.write_data()
        self.coordinator = self.start_coordinator()

    def start_worker(self):
        worker = harness.Daemon(
            harness.WORKER,
            ["--insecure", f"--coordinator={self.coordinator.address}",
             "--device=cpu", "--worker-id=test.0", "--metrics-listen=off",
             "--health-listen=off"], self.folder, "worker")
        self.addCleanup(worker.stop)
        harness.wait_for(lambda: self.coordinator.json("workers"), "the worker")

    def ok(self, *args):
        result = self.coordinator.cadre(*args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_from_the_plan_to_the_purge(self):
        self.write_job(model="{path: model, init: random}",
                       resources="{backend: cpu, workers: 1}")
        said = self.ok("plan", "job.yaml")
        self.assertIn("does not fit: the number of workers", said)
        said = self.ok("plan", "job.yaml", "--workers=2",
                       "--device-memory=8GiB")
        self.assertIn("job.yaml fits", said)
        self.assertIn("2 ranks", said)
        self.start_worker()
        said = self.ok("plan", "job.yaml")
        self.assertRegex(said, r"would start on test\.0")
        self.assertEqual(self.coordinator.jobs(), [])

        self.ok("submit", "job.yaml", "--wait", "--set", "name=first")
        self.ok("submit", "job.yaml", "--wait", "--set", "name=second")
        names = [job["name"] for job in self.coordinator.json(
            "list", "--all", "--order-by=name")]
        self.assertEqual(names, ["jobs/first", "jobs/second"])

        self.assertIn("adapter", self.ok("artifacts", "first"))
        folder = self.ok("artifacts", "get", "first", "--path-only").strip()
        self.assertIn("first", folder)
        self.ok("artifacts", "get", "first", "out")
        manifest = json.loads(
            (self.folder / "out/cadre_manifest.json").read_text())
        self.assertTrue(manifest["files"])
        for file in manifest["files"]:
            content = (self.folder / "out" / file["path"]).read_bytes()
            self.assertEqual(hashlib.sha256(content).hexdigest(),
                             file["sha256"])
        # A part of a file is gone on with; what is there is left alone.
        victim = self.folder / "out" / manifest["files"][0]["path"]
        content = victim.read_bytes()
        victim.with_name(victim.name + ".part").write_bytes(content[:5])
        victim.unlink()
        result = self.coordinator.cadre("artifacts", "get", "first", "out")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(victim.read_bytes(), content)
        self.assertIn("there already", result.stderr)
        self.ok("artifacts", "get", "first", "step", "--checkpoint=2")
        self.assertTrue((self.folder / "step/manifest.json").exists())
        self.expect_failure(
            self.coordinator.cadre("artifacts", "get", "first", "x",
                                   "--checkpoint=7"), 3, "no checkpoint")

        said = self.ok("purge", "--filter", "state = SUCCEEDED")
        self.assertEqual(said.split(), ["first", "second"])
        self.assertEqual(len(self.coordinator.jobs()), 2)
        self.ok("delete", "first", "--purge")
        checkpoints = self.coordinator.state / "checkpoints"
        harness.wait_for(lambda: not (checkpoints / "first").exists(),
                         "the removal of the checkpoints")
        self.ok("purge", "--filter", "state = SUCCEEDED", "--force")
        self.assertEqual(self.coordinator.jobs(), [])
        self.assertTrue((checkpoints / "second").exists())

    def test_a_changed_data_set_fails_the_job(self):
        self.write_job(model="{path: model, init: random}",
                       resources="{backend: cpu, workers: 1}")
        self.ok("submit", "job.yaml", "--set", "name=waits")
        harness.wait_for(
            lambda: self.coordinator.jobs()[0]["state"] == "JOB_STATE_QUEUED",
            "the end of the check")
        self.write_data(records=9)
        self.start_worker()
        job = harness.wait_for(
            lambda: next((job for job in self.coordinator.jobs()
                          if job["state"] == "JOB_STATE_FAILED"), None),
            "the failure")
        self.assertEqual(job["failure"]["cause"], "FAILURE_CAUSE_USER")
        self.assertIn("is not the one that was checked",
                      job["failure"]["status"]["message"])


if __name__ == "__main__":
    unittest.main()
