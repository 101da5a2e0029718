"""Programs that cannot start or cannot be reached."""

import unittest

from tests.cli import harness


class Start(harness.TestCase):

    def test_coordinator_names_the_port_in_use_and_the_flag(self):
        address = self.taken_address()
        for flags, named in (
            ((f"--listen={address}", "--metrics-listen=off",
              "--health-listen=off"), "--listen"),
            ((f"--metrics-listen={address}", "--listen=127.0.0.1:0",
              "--health-listen=off"),
             "--metrics-listen"),
            ((f"--health-listen={address}", "--listen=127.0.0.1:0",
              "--metrics-listen=off"), "--health-listen")):
            result = self.run_program(harness.COORDINATOR, "--insecure",
                                      "--state-dir=state", *flags)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(f"cannot listen on {address}", result.stderr)
            self.assertIn(f"with {named}", result.stderr)
            self.assertFalse((self.folder / "state").exists())

    def test_plaintext_must_be_asked_for(self):
        result = self.run_program(harness.COORDINATOR, "--state-dir=state")
        self.assertEqual(result.returncode, 78, result.stderr)
        self.assertIn("--insecure", result.stderr)
        self.assertFalse((self.folder / "state").exists())

    def test_plaintext_stays_on_loopback(self):
        result = self.run_program(harness.COORDINATOR, "--insecure",
                                  "--state-dir=state", "--listen=0.0.0.0:0")
        self.assertEqual(result.returncode, 78, result.stderr)
        self.assertIn("127.0.0.1", result.stderr)

    def test_one_coordinator_per_state_folder(self):
        coordinator = self.start_coordinator()
        result = self.run_program(harness.COORDINATOR, "--insecure",
                                  "--listen=127.0.0.1:0",
                                  "--metrics-listen=off", "--health-listen=off",
                                  f"--state-dir={coordinator.state}")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(str(coordinator.state), result.stderr)

    def test_configuration_errors_name_the_line(self):
        config = self.write("coordinator.conf", 'state_dir: "s"\nlisten_: 1\n')
        result = self.run_program(harness.COORDINATOR, f"--config={config}")
        self.assertEqual(result.returncode, 78, result.stderr)
        self.assertRegex(result.stderr, r"coordinator\.conf:2:\d+")
        self.assertIn("listen_", result.stderr)


class Reach(harness.TestCase):

    def test_unreachable_coordinator(self):
        address = self.free_address()
        self.write("job.yaml", "version: 1\n")
        for command in (("list",), ("get", "x"), ("workers",),
                        ("submit", "job.yaml"), ("validate", "job.yaml"),
                        ("cancel", "x")):
            result = harness.cadre(self.folder, f"--address={address}",
                                   "--timeout=0.5", *command)
            self.expect_failure(result, 8, address, "is it running",
                                "--address or CADRE_ADDRESS")

    def test_address_that_is_none(self):
        result = harness.cadre(self.folder, "--address=nonsense", "list")
        self.expect_failure(result, 4, "nonsense", "host:port")

    def test_address_that_is_not_loopback(self):
        result = harness.cadre(self.folder, "--address=192.0.2.1:8470", "list")
        self.expect_failure(result, 6, "192.0.2.1", "127.0.0.1")

    def test_usage(self):
        for args in ((), ("sumbit", "job.yaml"), ("submit",),
                     ("list", "--al"), ("--timeout=-1", "list")):
            result = harness.cadre(self.folder, *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertNotEqual(result.stderr + result.stdout, "")
        self.assertEqual(harness.cadre(self.folder, "--help").returncode, 0)
        self.assertEqual(harness.cadre(self.folder, "version").returncode, 0)
        self.assertEqual(harness.cadre(self.folder, "--version").returncode, 0)


class Data(harness.TestCase):

    def check(self, *args):
        return harness.cadre(self.folder, "dataset", "check", *args)

    def test_good_data(self):
        self.write_data(records=8)
        self.write_model()
        result = self.check("train.jsonl", "--model=model")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"records +8\b")

    def test_broken_line(self):
        self.write_data(records=400, broken=350)
        self.expect_failure(self.check("train.jsonl"), 4,
                            r"train\.jsonl:350:\d+: error: JSON",
                            "each line must be one JSON object")

    def test_missing_file(self):
        result = self.check("nothing.jsonl")
        self.assertIn(result.returncode, (3, 4), result.stderr)
        self.assertIn("nothing.jsonl", result.stderr)

    def test_mixed_formats(self):
        self.write("train.jsonl",
                   '{"text": "a"}\n{"prompt": "a", "completion": "b"}\n')
        self.expect_failure(self.check("train.jsonl"), 4,
                            r"train\.jsonl:2:\d+: error: MIXED_FORMAT",
                            "keep one format")


if __name__ == "__main__":
    unittest.main()
