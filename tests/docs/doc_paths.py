#!/usr/bin/env python3
"""Checks the paths that the documentation names.

doc_paths.py TREE DOC...: every relative link must lead to a file, and every
code span that looks like a path of the source tree must exist in it.
"""

import pathlib
import re
import sys

# A span is a path of the tree if it starts with one of these.
ROOTS = ("base/", "client/", "coordinator/", "docs/", "examples/", "kernels/",
         "model/", "plan/", "proto/", "tests/", "third_party/", "tools/",
         "worker/")


def expand(path):
    """a/{b,c}.h -> a/b.h, a/c.h."""
    found = re.search(r"\{([^}]*)\}", path)
    if not found:
        return [path]
    return [one for part in found.group(1).split(",")
            for one in expand(path[:found.start()] + part +
                              path[found.end():])]


def main():
    tree = pathlib.Path(sys.argv[1]).resolve()
    wrong, count = [], 0
    for name in sys.argv[2:]:
        doc = tree / name
        text = doc.read_text()
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if "://" in link:
                continue
            count += 1
            if not (doc.parent / link).exists():
                wrong.append(f"{name}: link to {link} leads nowhere")
        for span in re.findall(r"`([^`\n]+)`", text):
            if not span.startswith(ROOTS) or " " in span:
                continue
            for path in expand(span):
                count += 1
                # `coordinator/job` stands for its header and source.
                if not (any(tree.glob(path.rstrip("/"))) or
                        any(tree.glob(path.rstrip("/") + ".*"))):
                    wrong.append(f"{name}: there is no {path}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{count} paths, all there")


if __name__ == "__main__":
    main()
