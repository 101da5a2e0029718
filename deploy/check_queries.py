#!/usr/bin/env python3
"""Asks a Prometheus every query that is shipped; all must return data.

check_queries.py --prometheus URL [--wait SECONDS]

Queries: every panel and variable of deploy/grafana/dashboards/*.json and every
recording rule of deploy/prometheus/rules. Alerts need not fire, but their
expressions must be free of errors. A query may stay without data until the
time is up, since a training job fills the series bit by bit; what was seen once
counts.
"""

import argparse
import json
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
# What Grafana puts in for these.
VARIABLES = {"$__rate_interval": "20s", "$__range": "10m", "$job": ".+"}


def fill(query):
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    left = re.findall(r"\$\w+", query)
    if left:
        raise SystemExit(f"unknown variable {left[0]} in: {query}")
    return query


def get(url, path, **parameters):
    text = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{url}{path}?{text}", timeout=10) as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{parameters}: {error.read().decode()}") from error


def dashboard_queries():
    for file in sorted((HERE / "grafana/dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield (f"{file.stem}: {panel['title']} {target['refId']}",
                       fill(target["expr"]))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                metric = re.fullmatch(r"label_values\((\w+), (\w+)\)",
                                      variable["definition"])
                yield (f"{file.stem}: variable {variable['name']}",
                       f'{metric[1]}{{{metric[2]}!=""}}')


def has_data(url, query):
    result = get(url, "/api/v1/query", query=query)["result"]
    return any(sample["value"][1] != "NaN" for sample in result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--wait", type=float, default=0)
    args = parser.parse_args()
    url = args.prometheus

    missing = dict(dashboard_queries())
    for group in get(url, "/api/v1/rules")["groups"]:
        for rule in group["rules"]:
            if rule["type"] == "recording":
                missing[f"rule {rule['name']}"] = rule["name"]
            else:
                get(url, "/api/v1/query", query=rule["query"])
    total = len(missing)
    end = time.monotonic() + args.wait
    while missing:
        missing = {name: query for name, query in missing.items()
                   if not has_data(url, query)}
        if time.monotonic() > end:
            break
        time.sleep(0.5)
    for name, query in missing.items():
        print(f"no data: {name}\n    {query}", file=sys.stderr)
    for target in get(url, "/api/v1/targets")["activeTargets"]:
        if target["health"] != "up":
            raise SystemExit(f"{target['scrapeUrl']}: {target['lastError']}")
    print(f"{total - len(missing)} of {total} queries returned data")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
