"""Certificates and tokens, with real programs and a throw-away authority."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from tests.fault import cluster


class TlsTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(
            tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt",
                     "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", "/CN=authority", "-keyout", "ca.key", "-out",
                     "ca.pem")
        self.certificate("server", "IP:127.0.0.1")
        self.certificate("ops", "DNS:ops.example")
        self.certificate("host", "DNS:host")
        self.certificate("stranger", "DNS:stranger")
        (self.folder / "token").write_text("ann-s-secret-token\n")
        digest = hashlib.sha256(b"ann-s-secret-token").hexdigest()
        (self.folder / "access").write_text(
            f"tokens {{ name: 'ann' role: ROLE_SUBMITTER sha256: '{digest}' }}\n"
            "certificates { san: 'ops.example' role: ROLE_ADMIN }\n"
            "certificates { san: 'host' role: ROLE_WORKER }\n")
        self.port = cluster.free_port()
        (self.folder / "coordinator.textproto").write_text(
            cluster.TIMEOUTS + f"""
tls {{
  certificate_file: "{self.folder}/server.pem"
  key_file: "{self.folder}/server.key"
  client_ca_file: "{self.folder}/ca.pem"
}}
access_file: "{self.folder}/access"
""")
        self.coordinator = cluster.Process(
            [cluster.COORDINATOR,
             f"--config={self.folder}/coordinator.textproto",
             f"--listen=127.0.0.1:{self.port}", "--metrics-listen=off",
             "--health-listen=off", f"--state-dir={self.folder}/state"],
            self.folder / "coordinator.log")
        self.addCleanup(self.coordinator.stop)
        cluster.wait_for(
            lambda: self.cadre("list", *self.as_("ops")).returncode == 0,
            "the coordinator")

    def openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True,
                       capture_output=True)

    def certificate(self, name, san, days="2", authority="ca"):
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={san}\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt",
                     "ec_paramgen_curve:P-256", "-nodes", "-subj",
                     f"/CN={name}", "-keyout", f"{name}.key", "-out",
                     f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA",
                     f"{authority}.pem", "-CAkey", f"{authority}.key",
                     "-CAcreateserial", "-days", days, "-extfile",
                     f"{name}.ext", "-out", f"{name}.pem")

    def as_(self, name):
        return ("--cert", self.folder / f"{name}.pem", "--key",
                self.folder / f"{name}.key")

    def cadre(self, *args, ca="ca.pem"):
        return subprocess.run(
            [str(cluster.CADRE), f"--address=127.0.0.1:{self.port}",
             f"--ca={self.folder / ca}", "--timeout=5", *map(str, args)],
            cwd=self.folder, capture_output=True, text=True, check=False)

    def start_worker(self, worker_id, name):
        worker = cluster.Process(
            [cluster.WORKER, f"--coordinator=127.0.0.1:{self.port}",
             "--device=cpu", f"--worker-id={worker_id}",
             f"--ca={self.folder}/ca.pem", "--cert",
             self.folder / f"{name}.pem", "--key", self.folder / f"{name}.key",
             "--metrics-listen=off", "--health-listen=off"],
            self.folder / f"worker-{worker_id}.log")
        self.addCleanup(worker.kill)

    def test_each_caller_is_who_it_can_prove_to_be(self):
        token = ("--token-file", self.folder / "token")
        self.assertEqual(self.cadre("list", *token).returncode, 0)
        # Nobody, a certificate that is on no list, a role that is not enough.
        for args in ((), self.as_("stranger"), token):
            result = self.cadre("audit", *args)
            self.assertEqual(result.returncode, 5, result.stderr)
        self.assertEqual(self.cadre("audit", *self.as_("ops")).returncode, 0)
        # A server that this authority does not vouch for.
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt",
                     "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", "/CN=other", "-keyout", "other.key", "-out",
                     "other.pem")
        self.assertEqual(
            self.cadre("list", *token, ca="other.pem").returncode, 8)
        # A certificate of that authority, and one that is over.
        self.certificate("forged", "DNS:ops.example", authority="other")
        self.certificate("over", "DNS:ops.example", days="-1")
        for name in ("forged", "over"):
            result = self.cadre("list", *self.as_(name))
            self.assertIn(result.returncode, (5, 8), result.stderr)
        # Plaintext to a port that speaks TLS.
        plain = subprocess.run(
            [str(cluster.CADRE), f"--address=127.0.0.1:{self.port}", "list",
             "--timeout=3"], capture_output=True, text=True, check=False)
        self.assertEqual(plain.returncode, 8)
        # Nothing of the secret is anywhere.
        secret = "ann-s-secret-token"
        log = (self.folder / "coordinator.log").read_text()
        self.assertNotIn(secret, log)
        self.assertNotIn(secret,
                         self.cadre("audit", *self.as_("ops")).stdout)

    def test_a_worker_speaks_for_its_own_host_only(self):
        self.start_worker("host.0", "host")
        cluster.wait_for(
            lambda: "host.0" in self.cadre("workers",
                                           *self.as_("ops")).stdout,
            "the worker")
        self.start_worker("elsewhere.0", "host")
        audit = cluster.wait_for(
            lambda: [line for line in self.cadre(
                "audit", *self.as_("ops")).stdout.splitlines()
                     if "WORKER_ID_MISMATCH" in line], "the refusal")
        self.assertIn("Sync", audit[0])
        self.assertNotIn("elsewhere", self.cadre("workers",
                                                 *self.as_("ops")).stdout)

    def test_the_access_list_is_read_again(self):
        token = ("--token-file", self.folder / "token")
        self.assertEqual(self.cadre("list", *token).returncode, 0)
        access = self.folder / "access"
        access.write_text("tokens { nonsense }")
        self.assertEqual(self.cadre("list", *token).returncode, 0)
        access.write_text("certificates { san: 'ops.example' "
                          "role: ROLE_ADMIN }\n")
        cluster.wait_for(
            lambda: self.cadre("list", *token).returncode == 5,
            "the token to be refused")


if __name__ == "__main__":
    unittest.main()
