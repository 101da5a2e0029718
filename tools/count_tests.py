#!/usr/bin/env python3
"""Counts test cases from Bazel's build event file.

Usage: count_tests.py EVENTS PASSED FAILED, the last two being cases that ran
outside Bazel. Prints "N passed, N failed, N skipped"; exits 1 if any failed.
"""
import json
import re
import sys
import urllib.parse


def cases(path):
    """(passed, failed, skipped) of one test.xml."""
    with open(path, encoding="utf-8", errors="replace") as f:
        text = f.read()
    counts = [0, 0, 0]
    for case in re.findall(r"<testcase\b[^>]*?/>|<testcase\b.*?</testcase>", text, re.S):
        if "<failure" in case or "<error" in case:
            counts[1] += 1
        elif "<skipped" in case or 'result="skipped"' in case:
            counts[2] += 1
        else:
            counts[0] += 1
    return counts


def main():
    total = [int(sys.argv[2]), int(sys.argv[3]), 0]
    with open(sys.argv[1], encoding="utf-8") as f:
        events = [json.loads(line) for line in f if line.strip()]
    for event in events:
        ident = event["id"]
        if "targetCompleted" in ident and "completed" in event:
            # A target that did not build has run no test.
            if not event["completed"].get("success"):
                total[1] += 1
                print("did not build:", ident["targetCompleted"]["label"])
        elif "testResult" in ident and "testResult" in event:
            result = event["testResult"]
            counts = [0, 0, 0]
            for output in result.get("testActionOutput", []):
                if output["name"] == "test.xml":
                    counts = cases(urllib.parse.unquote(output["uri"][len("file://"):]))
            if result["status"] != "PASSED" and counts[1] == 0:
                counts[1] = 1  # crashed or timed out before it could write
            if sum(counts) == 0:
                counts[0] = 1
            total = [a + b for a, b in zip(total, counts)]
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


sys.exit(main())
