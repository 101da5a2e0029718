#!/usr/bin/env python3
"""metrics_doc.py NAMES_H DOC: both must name the same metrics."""

import pathlib
import re
import sys


def main():
    header, doc = (pathlib.Path(arg) for arg in sys.argv[1:3])
    defined = set(re.findall(r'"(cadre_\w+)"', header.read_text()))
    described = set(re.findall(r"^\| `(cadre_\w+)`", doc.read_text(), re.M))
    if not defined:
        sys.exit(f"{header}: no metric found; adapt this test")
    wrong = [f"{doc}: no row for {m}" for m in sorted(defined - described)]
    wrong += [f"{doc}: {m} does not exist" for m in sorted(described - defined)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(defined)} metrics, all described")


if __name__ == "__main__":
    main()
