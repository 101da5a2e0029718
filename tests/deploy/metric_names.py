#!/usr/bin/env python3
"""metric_names.py NAMES_H DEPLOY RUNBOOKS: checks what queries speak of.

Every cadre_ metric in rules, alerts, their tests and dashboards must be defined
(histograms by their _bucket, _sum and _count), every cadre: series recorded,
every dashboard variable used, every alert tested and described on a page.
"""

import json
import pathlib
import re
import sys


def main():
    header, deploy, runbooks = (pathlib.Path(arg) for arg in sys.argv[1:4])
    text = header.read_text()
    # "name", kType
    kinds = dict(re.findall(r'"(cadre_\w+)",\s*(k\w+)', text))
    if len(kinds) < 20:
        sys.exit(f"{header}: only {len(kinds)} metrics found; adapt this test")
    known = {name for name, kind in kinds.items() if kind != "kHistogram"}
    for name, kind in kinds.items():
        if kind == "kHistogram":
            known |= {name + end for end in ("_bucket", "_sum", "_count")}

    rules = sorted((deploy / "prometheus/rules").glob("*.yml"))
    tests = sorted((deploy / "prometheus/tests").glob("*.yml"))
    boards = sorted((deploy / "grafana/dashboards").glob("*.json"))
    all_rules = "\n".join(file.read_text() for file in rules)
    recorded = set(re.findall(r"record: (cadre:[\w:]+)", all_rules))
    wrong = []
    for file in [*rules, *tests, *boards]:
        content = file.read_text()
        for name in set(re.findall(r"\bcadre_[a-z_0-9]+", content)) - known:
            wrong.append(f"{file}: there is no metric {name}")
        for name in set(re.findall(r"\bcadre:[\w:]+", content)) - recorded:
            wrong.append(f"{file}: {name} is not recorded")
    for file in boards:
        board = json.loads(file.read_text())
        panels = json.dumps(board["panels"])
        ids = [panel["id"] for panel in board["panels"]]
        if len(ids) != len(set(ids)):
            wrong.append(f"{file}: panel ids repeat")
        for variable in board["templating"]["list"]:
            name = variable["name"]
            if f"${name}" not in panels and f"${{{name}}}" not in panels:
                wrong.append(f"{file}: variable {name} is not used")
    tested = "\n".join(file.read_text() for file in tests)
    pages = runbooks.read_text()
    alerts = re.findall(r"- alert: (\w+)", all_rules)
    for alert in alerts:
        if f"alertname: {alert}\n" not in tested:
            wrong.append(f"{alert} has no promtool test")
        if f"## {alert}\n" not in pages:
            wrong.append(f"{runbooks}: no page for {alert}")
        if f"runbooks.md#{alert.lower()}" not in all_rules:
            wrong.append(f"{alert}: its runbook_url does not lead to its page")
    for page in re.findall(r"^## (Cadre\w+)$", pages, re.M):
        if page not in alerts:
            wrong.append(f"{runbooks}: there is no alert {page}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(alerts)} alerts, {len(recorded)} recorded series and "
          f"{len(boards)} dashboards agree with the code")


if __name__ == "__main__":
    main()
