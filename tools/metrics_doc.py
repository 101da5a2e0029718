#!/usr/bin/env python3
"""Writes docs/metrics.md from the table in base/metrics/names.h.

metrics_doc.py NAMES_H DOC          rewrites DOC
metrics_doc.py --check NAMES_H DOC  exits 1 unless DOC is what it would write

The header's sections ("// ---- name") become headings, a definition's
"// Labels:" comment, type, buckets and help become a row.
"""

import pathlib
import re
import sys

INTRODUCTION = """\
# Metrics

Prometheus metrics, all defined in `base/metrics/names.h`, from which \
`tools/metrics_doc.py` writes this page. The coordinator serves them on \
`--metrics-listen` (8472), worker i on 8480 + i. All series of a worker exist \
from the start; gauges about a job are NaN while it is idle. No label holds a \
layer, an expert, a user or free text; `job` is a label only where it says so, \
and its series end with the job. Balancedness is mean over largest load: 1 is \
perfect.

Histograms: "calls" have bounds from 1 ms to 10 s, "work" from 0.1 s to 1 h, \
"counts" powers of two to 2048.
"""
ABSENT = """\

## What is not here

- `moe_dispatch_headroom_ratio`, `moe_step_reruns_total`: other systems send \
expert rows in segments of a fixed size, which can be too small, and then run \
the step again. Here ranks exchange the sizes first, buffers are made for what \
comes, and no step is run again.
- The hardware of a GPU (clocks, temperature, ECC counts, link traffic): that \
is what [dcgm-exporter](https://github.com/NVIDIA/dcgm-exporter) exports; join \
it on `gpu_uuid` of `cadre_worker_info`.
"""
TYPES = {"kCounter": "counter", "kGauge": "gauge", "kHistogram": "histogram"}
BUCKETS = {"kFast": ", calls", "kSlow": ", work",
           "kCounts": ", counts"}


def definitions(text):
    """(section, name, type, buckets, labels, help) in the header's order."""
    section, labels = None, []
    statements = re.finditer(
        r"^// ---- (?P<section>[^\n]*?) -+$|^// (?P<comment>[^\n]*)$|"
        r"^inline constexpr MetricDef (?P<def>.*?);$",
        text, re.M | re.S)
    for statement in statements:
        if statement["section"]:
            section, labels = statement["section"], []
        elif statement["comment"]:
            labels.append(statement["comment"])
        elif section:
            body = statement["def"]
            name, kind = re.search(r'"(cadre_\w+)",\s*(k\w+)', body).groups()
            strings = re.findall(r'"((?:[^"\\]|\\.)*)"', body)[1:]
            buckets = re.search(r",\s*(kFast|kSlow|kCounts)\}", body)
            comment = re.sub(r"\|\s+", "|", " ".join(labels))
            found = re.fullmatch(r"Labels: (.*?)\.", comment)
            if comment and not found:
                sys.exit(f"{name}: the comment above it must be "
                         f"'Labels: ....', not '{comment}'")
            yield (section, name, TYPES[kind],
                   BUCKETS[buckets[1]] if buckets else "",
                   found[1] if found else "-", "".join(strings))
            labels = []


def page(text):
    lines, last = [INTRODUCTION], None
    for section, name, kind, buckets, labels, help_text in definitions(text):
        if section != last:
            lines += ["", f"## {section[0].upper()}{section[1:]}", "",
                      "| Metric | Type | Labels | Meaning |",
                      "|---|---|---|---|"]
            last = section
        labels = labels.replace("|", " \\| ")
        lines.append(f"| `{name}` | {kind}{buckets} | {labels} | "
                     f"{help_text} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n" + ABSENT


def main():
    check = sys.argv[1] == "--check"
    header, doc = (pathlib.Path(arg) for arg in sys.argv[1 + check:])
    text = page(header.read_text())
    if not check:
        doc.write_text(text)
    elif doc.read_text() != text:
        sys.exit(f"{doc} is not what base/metrics/names.h says; run "
                 "tools/metrics_doc.py base/metrics/names.h docs/metrics.md")


if __name__ == "__main__":
    main()
