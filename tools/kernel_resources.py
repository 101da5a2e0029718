#!/usr/bin/env python3
"""What kernels take of a multiprocessor, from reports of `ptxas -v`.

  bazel build --config=cuda //kernels/gdn:gdn_cuda_resources
  tools/kernel_resources.py bazel-bin/kernels/gdn/gdn_cuda_resources/gdn.txt

Prints a Markdown table. With --no-spills it fails where a kernel keeps
registers in local memory, and where a report names no kernel at all.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                   r"(\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def kernels(report):
    """(mangled name, registers, static smem, stack, stores, loads) of each."""
    name, stack = None, None
    for line in report.read_text().splitlines():
        if match := ENTRY.search(line):
            name, stack = match[1], None
        elif match := STACK.search(line):
            stack = [int(x) for x in match.groups()]
        elif name and stack and (match := USED.search(line)):
            yield (name, int(match[1]), int(match[2] or 0), *stack)
            name = None


def readable(names):
    """Demangled, without namespaces and parameters, where c++filt is found."""
    if not names or not shutil.which("c++filt"):
        return names
    lines = subprocess.run(["c++filt"], input="\n".join(names), text=True,
                           capture_output=True, check=True).stdout.splitlines()
    short = []
    for line in lines:
        line = re.sub(r"\(anonymous namespace\)::|\b\w+::|^void ", "", line)
        line = re.sub(r"\((bool|int)\)", "", line)
        short.append(re.sub(r"\(.*\)$", "", line))
    return short


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--no-spills", action="store_true")
    parser.add_argument("reports", nargs="+", type=Path)
    args = parser.parse_args()
    print("| kernel | registers | static shared memory | stack | "
          "spilled bytes, stores / loads |\n|---|---|---|---|---|")
    errors = []
    for report in args.reports:
        rows = list(kernels(report))
        if not rows:
            errors.append(f"{report}: no kernel in it; is it what nvcc prints "
                          "with -Xptxas -v?")
        for name, row in zip(readable([row[0] for row in rows]), rows):
            _, registers, smem, stack, stores, loads = row
            print(f"| {name} | {registers} | {smem} | {stack} | "
                  f"{stores} / {loads} |")
            if stores or loads:
                errors.append(
                    f"{report.stem}: {name} spills: {stores} bytes of stores "
                    f"and {loads} of loads at {registers} registers; shorten "
                    "live ranges or look values up again (docs/benchmarks.md)")
    if not args.no_spills:
        return 0
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
