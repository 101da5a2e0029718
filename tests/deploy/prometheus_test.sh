#!/bin/bash
# Rules, alerts and dashboards: syntax, promtool's unit tests, and that they
# speak of metrics, labels and runbook pages that exist.
set -eu
names=$PWD/tests/deploy/metric_names.py
cd "$(dirname "$(readlink -f WORKSPACE)")"
promtool check config deploy/prometheus/prometheus.yml
promtool test rules deploy/prometheus/tests/alerts_test.yml
generated=$TEST_TMPDIR/dashboards
mkdir -p "$generated"
PYTHONDONTWRITEBYTECODE=1 python3 deploy/grafana/dashboards.py "$generated"
diff -r "$generated" deploy/grafana/dashboards || {
  echo "run: deploy/grafana/dashboards.py deploy/grafana/dashboards" >&2
  exit 1
}
python3 "$names" base/metrics/names.h deploy docs/runbooks.md
