"""Replays what a coordinator has written down and looks for broken promises.

Reads state.db itself, so that it also sees what the API might hide.
"""

import collections
import pathlib
import re
import sqlite3

ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}

# From -> to, by the table of coordinator/job.h.
LEGAL = {
    "VALIDATING": {"QUEUED", "FAILED", "PAUSED", "CANCELLED"},
    "QUEUED": {"STARTING", "PAUSED", "CANCELLED"},
    "STARTING": {"RUNNING", "RECOVERING", "PAUSING", "CANCELLING"},
    "RUNNING": {"RECOVERING", "FINALIZING", "PAUSING", "CANCELLING"},
    "RECOVERING": {"STARTING", "QUEUED", "FAILED", "PAUSING", "CANCELLING"},
    "FINALIZING": {"SUCCEEDED", "RECOVERING", "CANCELLING"},
    "PAUSING": {"PAUSED", "QUEUED", "FAILED", "CANCELLING"},
    "PAUSED": {"QUEUED", "VALIDATING", "CANCELLED"},
    "CANCELLING": {"CANCELLED"},
    **{state: set() for state in ENDED},
}


def fields(blob):
    """The top-level fields of a serialized message: number -> values."""
    out, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = blob[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(blob):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 1:
            value, at = blob[at:at + 8], at + 8
        elif kind == 2:
            size = varint()
            value, at = blob[at:at + size], at + size
        else:
            value, at = blob[at:at + 4], at + 4
        out.setdefault(key >> 3, []).append(value)
    return out


def event_of(blob):
    """type, epoch and data of a cadre.v1.Event."""
    event = fields(blob)
    data = {}
    for entry in event.get(7, []):
        pair = fields(entry)
        data[pair.get(1, [b""])[0].decode()] = pair.get(2, [b""])[0].decode()
    return (event.get(5, [b""])[0].decode(), event.get(3, [0])[0], data)


def starts(logs):
    """How often workers say that they began each (job, attempt, rank)."""
    begun = re.compile(r"attempt (\d+) of (\S+): rank (\d+) of ")
    return collections.Counter(
        (match[2], int(match[1]), int(match[3]))
        for log in logs for match in begun.finditer(log.read_text()))


def check(state, acknowledged=(), only_coordinator=False):
    """Raises AssertionError with all that is wrong; returns counts.

    only_coordinator: nothing else was harmed, so no attempt may have failed.
    """
    problems = []
    path = pathlib.Path(state) / "state.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        jobs = {row[0] for row in db.execute("SELECT id FROM jobs")}
        buried = {row[0] for row in db.execute("SELECT id FROM tombstones")}
        trimmed = dict(db.execute("SELECT job_id, last_sequence FROM trimmed"))
        rows = db.execute(
            "SELECT sequence, job_id, event FROM events ORDER BY sequence"
        ).fetchall()
        verdict = db.execute("PRAGMA integrity_check").fetchone()[0]
        requests = db.execute(
            "SELECT job_id, count(*) FROM requests WHERE method = 'CreateJob' "
            "GROUP BY job_id HAVING count(*) > 1").fetchall()
    if verdict != "ok":
        problems.append(f"state.db: {verdict}")
    for job in acknowledged:
        if job not in jobs and job not in buried:
            problems.append(f"{job}: acknowledged and lost")
    for job, count in requests:
        problems.append(f"{job}: made by {count} requests")
    sequences = [row[0] for row in rows]
    if not trimmed and not buried and sequences != list(
            range(1, len(sequences) + 1)):
        problems.append("a gap in the sequences of the events")
    position, epoch = {}, {}
    for sequence, job, blob in rows:
        kind, at, data = event_of(blob)
        if kind == "CREATED":
            if job in position:
                problems.append(f"{job}: created twice, at {sequence}")
            position[job] = "VALIDATING"
        elif kind == "STATE_CHANGED":
            now = position.get(job)
            if now is not None and data["from"] != now:
                problems.append(
                    f"{job}: at {sequence} left {data['from']} but was {now}")
            if data["to"] not in LEGAL[data["from"]]:
                problems.append(f"{job}: at {sequence} illegal "
                                f"{data['from']} -> {data['to']}")
            position[job] = data["to"]
        elif kind == "ATTEMPT_STARTED":
            if at <= epoch.get(job, 0):
                problems.append(f"{job}: at {sequence} epoch {at} after "
                                f"{epoch[job]}")
            epoch[job] = at
        elif kind == "ATTEMPT_ENDED" and only_coordinator:
            problems.append(f"{job}: at {sequence} attempt {at} failed: {data}")
        elif position.get(job) in ENDED and kind != "WARNING":
            problems.append(f"{job}: at {sequence} {kind} after the end")
    for job in jobs - set(trimmed):
        if job not in position:
            problems.append(f"{job}: no event of its creation")
    if problems:
        raise AssertionError("\n".join(problems))
    return {"jobs": len(jobs), "events": len(rows),
            "attempts": sum(epoch.values()),
            "ended": collections.Counter(
                state for state in position.values() if state in ENDED)}
