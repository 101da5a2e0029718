"""Job files, models and data as a new user gets them wrong.

Each case: the exit code, one message that names the place and the remedy, and
nothing left behind.
"""

import shutil
import unittest

from tests.cli import harness


class RefusedJobs(harness.TestCase):

    def setUp(self):
        super().setUp()
        self.write_model()
        self.write_data()
        self.coordinator = self.start_coordinator()

    def refuse(self, *patterns, code=4):
        for command in (("validate",), ("submit",), ("submit", "--wait")):
            result = self.coordinator.cadre(*command, "job.yaml")
            self.expect_failure(result, code, *patterns)
        self.expect_nothing_left(self.coordinator)

    def test_unknown_field(self):
        self.write_job(training="\n  learning_rat: 1.0e-4")
        self.refuse(r"job\.yaml:5:3: error: .*learning_rat\b",
                    r'did you mean "learning_rate"', r"\^")

    def test_wrong_type(self):
        self.write_job(training="\n  max_steps: many")
        self.refuse(r"job\.yaml:5:\d+: error: .*many")

    def test_value_out_of_range(self):
        self.write_job(tuning="{lora_rank: 0}")
        self.refuse(r"job\.yaml:6:\d+: error: .*1 - 512")

    def test_batch_that_does_not_divide(self):
        self.write_job(training="{max_steps: 2, global_batch_size: 3}")
        self.refuse(r"job\.yaml:4:\d+: error: .*: 3 rows .* 2 workers",
                    r"use 2 or 4")

    def test_option_that_this_release_lacks(self):
        self.write_job(moe="{bias_update_rate: 0.1}",
                       tuning="{method: full}")
        self.refuse(r"job\.yaml:\d+:\d+: error: .*"
                    r"not supported by this release", r"remove it")

    def test_spare_slots_without_ranks_to_share_experts(self):
        self.write_job(moe="{spare_slots_per_rank: 1}",
                       parallelism="{expert_parallel_size: 1}")
        self.refuse(r"error: moe\.spare_slots_per_rank: 1 with "
                    r"parallelism\.expert_parallel_size 1")

    def test_missing_job_file(self):
        self.refuse(r"job\.yaml does not exist", code=3)

    def test_missing_model_folder(self):
        self.write_job(model="{path: nowhere}")
        self.refuse(r"job\.yaml:2:\d+: error: .*/nowhere\b",
                    r"model\.path|config\.json")

    def test_folder_that_is_no_model(self):
        (self.folder / "model/config.json").unlink()
        self.write_job()
        self.refuse(r"job\.yaml:2:\d+: error: .*/model has no config\.json")

    def test_missing_tokenizer(self):
        (self.folder / "model/tokenizer.json").unlink()
        self.write_job()
        self.refuse(r"job\.yaml:2:\d+: error: .*/model has no tokenizer\.json",
                    r"model\.tokenizer")

    def test_truncated_weights(self):
        weights = self.folder / "model/model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:len(content) // 2])
        self.write_job()
        self.refuse(r"job\.yaml:2:\d+: error: .*model\.safetensors",
                    r"outside of the \d+ bytes .*truncated",
                    "copy or download it again")

    def test_lora_target_that_matches_nothing(self):
        self.write_job(tuning="{lora_target_modules: [no_such_proj]}")
        self.refuse(r"job\.yaml:6:\d+: error: .*no_such_proj", r"\bq_proj\b")

    def test_broken_line_of_data(self):
        self.write_data(broken=3)
        self.write_job()
        self.refuse(r"train\.jsonl:3:\d+: error: .*JSON",
                    r"each line must be one JSON object")

    def test_empty_data_set(self):
        self.write("train.jsonl", "")
        self.write_job()
        self.refuse(r"train\.jsonl: error: .*no records", r"fill it")

    def test_missing_data_file(self):
        self.write_job(data="{train: [nothing-*.jsonl]}")
        self.refuse(r"nothing-\*\.jsonl")

    def test_several_errors_come_together(self):
        self.write_job(training="{max_steps: 0, learning_rate: 7}")
        result = self.coordinator.cadre("submit", "job.yaml")
        self.assertEqual(result.returncode, 4)
        self.assertEqual(result.stderr.count("error:"), 2, result.stderr)
        self.expect_nothing_left(self.coordinator)


class LocalValidation(harness.TestCase):

    def test_needs_no_coordinator(self):
        self.write_model()
        self.write_job()
        result = harness.cadre(self.folder, "validate", "--local", "job.yaml")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("job.yaml is valid", result.stdout)

    def test_finds_what_the_coordinator_finds(self):
        self.write_model()
        self.write_job(tuning="{lora_target_modules: [no_such_proj]}")
        result = harness.cadre(self.folder, "validate", "--local", "job.yaml")
        self.expect_failure(result, 4, r"job\.yaml:6:\d+: error: .*no_such_proj")


class AcceptedJobs(harness.TestCase):

    def setUp(self):
        super().setUp()
        self.write_model(vocab_size=2048)
        self.write_data()
        self.coordinator = self.start_coordinator()

    def write_random_job(self, **changes):
        self.write_job(model="{path: model, init: random}", **changes)

    def test_waits_with_numbers_where_no_worker_is_there_and_can_be_cancelled(
            self):
        self.write_random_job(extra="name: lonely\n")
        result = self.coordinator.cadre("submit", "job.yaml")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "submitted lonely\n")

        def reason():
            job = self.coordinator.json("get", "lonely")[0]
            self.assertIn(job["state"],
                          ("JOB_STATE_VALIDATING", "JOB_STATE_QUEUED"))
            reason = job.get("queue_reason") or {}
            return reason.get("code") == "NO_ELIGIBLE_WORKERS" and reason

        self.assertRegex(harness.wait_for(reason, "a reason")["message"],
                         r"needs 2 cpu workers; only 0 of the 0 registered")
        result = self.coordinator.cadre("list")
        self.assertRegex(result.stdout, r"lonely +QUEUED .*needs 2 cpu workers")
        result = self.coordinator.cadre("rebalance", "lonely")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr,
                         r"jobs/lonely is QUEUED: experts move while it trains")

        for _ in range(2):  # repeating it is no error
            result = self.coordinator.cadre("cancel", "lonely",
                                            "--reason=enough")
            self.assertEqual(result.returncode, 0, result.stderr)
        result = self.coordinator.cadre("watch", "lonely")
        self.assertEqual(result.returncode, 9, result.stderr)
        self.assertIn("enough", self.coordinator.cadre("events",
                                                       "lonely").stdout)
        self.assertFalse((self.coordinator.state / "outputs/lonely").exists())

    def test_fails_with_the_line_where_data_is_broken_behind_the_head(self):
        self.write_data(records=400, broken=350)
        self.write_random_job(extra="name: broken\n")
        result = self.coordinator.cadre("submit", "--wait", "job.yaml")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stdout + result.stderr,
                         r"train\.jsonl.*350.*one JSON object")
        job = self.coordinator.json("get", "broken")[0]
        self.assertEqual(job["failure"]["cause"], "FAILURE_CAUSE_USER")
        self.assertTrue(job["failure"]["user_error"])
        self.assertFalse((self.coordinator.state / "outputs/broken").exists())

    def test_fails_where_the_tokenizer_is_of_another_model(self):
        shutil.rmtree(self.folder / "model")
        self.write_model()
        self.write_job(extra="name: alien\n")
        result = self.coordinator.cadre("submit", "--wait", "job.yaml")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stdout + result.stderr,
                         r"token id \d+ .*model's 160 tokens.*model\.tokenizer")

    def test_a_name_is_never_used_twice(self):
        self.write_random_job(extra="name: once\n")
        self.coordinator.cadre("submit", "job.yaml")
        result = self.coordinator.cadre("submit", "job.yaml")
        self.expect_failure(result, 6, r"there is or was a job 'once'",
                            r"choose another")
        self.assertEqual(len(self.coordinator.jobs()), 1)

    def test_a_repeated_request_id_is_the_same_job(self):
        self.write_random_job()
        request = "--request-id=5b9c2f0e-0d7b-4a3e-9d5e-0123456789ab"
        first = self.coordinator.cadre("submit", "job.yaml", request)
        again = self.coordinator.cadre("submit", "job.yaml", request)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout.split()[-1], first.stdout.split()[-1])
        self.assertIn("already submitted", again.stdout)
        self.write_random_job(tuning="{lora_rank: 4}")
        changed = self.coordinator.cadre("submit", "job.yaml", request)
        self.expect_failure(changed, 6, "another body")
        self.assertEqual(len(self.coordinator.jobs()), 1)

    def test_an_unknown_job_is_not_found(self):
        for command in ("get", "watch", "events", "cancel"):
            result = self.coordinator.cadre(command, "nobody")
            self.expect_failure(result, 3, "there is no job")


if __name__ == "__main__":
    unittest.main()
