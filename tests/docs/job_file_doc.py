#!/usr/bin/env python3
"""Compares docs/job_file.md with the fields of JobSpec.

Every field of JobSpec and of the messages in it must have a row of a table,
written as its path (`training.epochs`), and every row must be a field.
"""

import pathlib
import re
import sys


def read_messages(text):
    """{message: [(type, field)]} of a proto file without nested messages."""
    messages = {}
    text = re.sub(r"//[^\n]*", "", text)
    for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", text, re.S):
        fields = re.findall(
            r"(?:optional |repeated )?(map<[^>]*>|[\w.]+) (\w+) = \d+;", body)
        messages[name] = fields
    return messages


def paths_of(messages, message, prefix=""):
    for kind, field in messages[message]:
        if kind in messages:
            yield prefix + field
            yield from paths_of(messages, kind, prefix + field + ".")
        else:
            yield prefix + field


def documented_paths(text):
    """The code spans in the first column of every table about fields."""
    in_table = False
    for line in text.splitlines():
        if not line.startswith("|"):
            in_table = False
        elif line.startswith("| Field |"):
            in_table = True
        elif in_table and not line.startswith("|---"):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


def main():
    proto, doc = (pathlib.Path(arg) for arg in sys.argv[1:3])
    fields = list(paths_of(read_messages(proto.read_text()), "JobSpec"))
    rows = list(documented_paths(doc.read_text()))
    if len(fields) < 60:
        sys.exit(f"{proto}: only {len(fields)} fields were found; "
                 "its layout has changed, adapt this test")
    wrong = [f"{doc}: no row for `{f}`" for f in fields if f not in rows]
    wrong += [f"{doc}: `{r}` is no field of JobSpec" for r in rows
              if r not in fields]
    wrong += [f"{doc}: `{r}` has two rows" for r in set(rows)
              if rows.count(r) > 1]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(fields)} fields, all documented")


if __name__ == "__main__":
    main()
