#!/usr/bin/env python3
"""Writes the dashboards of deploy/grafana/dashboards from the tables below.

dashboards.py DIR          writes DIR/{fleet,training,experts}.json
dashboards.py --queries    prints "dashboard<TAB>panel<TAB>query" lines

Panels are rows of a table here so that a reader sees what a dashboard shows;
Grafana's JSON is 20 times as long. A test keeps both equal and asks a real
Prometheus every query.
"""

import json
import pathlib
import sys

# Brings the name of its job to a worker's series.
JOIN = ("* on (instance) group_left (exported_job) max by (instance, "
        'exported_job) (cadre_worker_assignment_info{exported_job=~"$job"})')


def by_job(query, how="max"):
    """A worker's series, over the ranks of the chosen job."""
    return f"{how} by (exported_job) ({query} {JOIN})"


def rate(metric, labels="", by="instance"):
    return f"sum by ({by}) (rate({metric}{labels}[$__rate_interval]))"


def phase_mean(phase):
    selector = f'{{phase="{phase}"}}'
    return by_job(
        "(" + rate("cadre_train_step_seconds_sum", selector) + " / (" +
        rate("cadre_train_step_seconds_count", selector) + " > 0))")


def phase_share(phase):
    """Of the time of steps, mean over the ranks."""
    selector = f'{{phase="{phase}"}}'
    return by_job(
        "(" + rate("cadre_train_phase_seconds_total", selector) + " / (" +
        rate("cadre_train_step_seconds_sum", '{phase="total"}') + " > 0))",
        "avg")


# title, unit, kind, [(legend, query)]; kind: series, stacked, stat
FLEET = [
    ("Jobs by state", "short", "stacked", [
        ("{{state}}", "sum by (state) (cadre_jobs)")]),
    ("Queued jobs by reason", "short", "stacked", [
        ("{{reason}}", "sum by (reason) (cadre_queue_jobs)")]),
    ("Workers", "short", "stacked", [
        ("{{state}} {{admin_state}}",
         "sum by (state, admin_state) (cadre_workers)")]),
    ("Progress of live jobs", "percentunit", "series", [
        ("{{exported_job}}", "max by (exported_job) "
         "(cadre_job_progress_ratio)")]),
    ("Goodput of live jobs", "percentunit", "series", [
        ("{{exported_job}}", "max by (exported_job) "
         "(cadre_job_goodput_ratio)")]),
    ("Tokens a second by job", "short", "stacked", [
        ("{{exported_job}}", "cadre:job_tokens:rate2m")]),
    ("Restarts in the last hour by cause", "short", "series", [
        ("{{cause}}", "sum by (cause) "
         "(increase(cadre_job_restarts_total[1h]))")]),
    ("Failures in the last hour by cause", "short", "series", [
        ("{{cause}}", "sum by (cause) "
         "(increase(cadre_job_failures_total[1h]))")]),
    ("Recovery, p95", "s", "series", [
        ("p95", "histogram_quantile(0.95, sum by (le) "
         "(increase(cadre_job_recovery_seconds_bucket[1h])))"),
        ("mean", "sum(cadre_job_recovery_seconds_sum) / "
         "sum(cadre_job_recovery_seconds_count)")]),
    ("Wait in the queue, p95", "s", "series", [
        ("p95", "histogram_quantile(0.95, sum by (le) "
         "(increase(cadre_job_queue_wait_seconds_bucket[1h])))")]),
    ("Journal commit, p99", "s", "series", [
        ("{{instance}}", "cadre:journal_commit_seconds:p99_5m")]),
    ("Journal size", "bytes", "stacked", [
        ("{{file}}", "sum by (file) (cadre_journal_bytes)")]),
    ("Mutations a commit", "none", "series", [
        ("{{instance}}", "sum by (instance) "
         "(rate(cadre_journal_batch_mutations_sum[$__rate_interval])) / "
         "(sum by (instance) (rate("
         "cadre_journal_batch_mutations_count[$__rate_interval])) > 0)")]),
    ("Free space of the journal's disk", "bytes", "series", [
        ("free {{instance}}", "cadre_journal_free_bytes"),
        ("0: full {{instance}}", "cadre_journal_writable")]),
    ("Age of the last backup", "s", "series", [
        ("{{instance}}",
         "time() - (cadre_journal_last_backup_timestamp_seconds > 0)")]),
    ("Certificates expire in", "s", "series", [
        ("{{instance}} {{name}}",
         "cadre_certificate_expiry_timestamp_seconds - time()")]),
    ("Open calls and watches", "short", "series", [
        ("calls", "sum(cadre_grpc_inflight)"),
        ("watches", "sum(cadre_watch_streams)")]),
    ("Refused calls by reason", "reqps", "series", [
        ("{{reason}}", "sum by (reason) "
         "(rate(cadre_auth_denials_total[$__rate_interval]))")]),
    ("Check of data sets, mean", "s", "series", [
        ("mean", "sum(cadre_dataset_validation_seconds_sum) / "
         "sum(cadre_dataset_validation_seconds_count)")]),
    ("API calls by method and code", "reqps", "series", [
        ("{{method}} {{code}}", "sum by (method, code) "
         "(rate(cadre_grpc_requests_total[$__rate_interval]))")]),
    ("API calls, p99", "s", "series", [
        ("{{method}}", "max by (method) "
         "(cadre:grpc_request_seconds:p99_5m)")]),
    ("Sync calls by result", "reqps", "series", [
        ("{{result}}", "sum by (result) "
         "(rate(cadre_sync_requests_total[$__rate_interval]))")]),
    ("Device errors in the last hour by kind", "short", "series", [
        ("{{kind}}", "sum by (kind) "
         "(increase(cadre_device_errors_total[1h]))")]),
    ("Leases that ran out", "short", "series", [
        ("{{verdict}}", "sum by (verdict) "
         "(increase(cadre_worker_lease_expirations_total[1h]))")]),
]

TRAINING = [
    ("Loss", "none", "series", [
        ("train {{exported_job}}", by_job("cadre_train_loss")),
        ("eval {{exported_job}}", by_job("cadre_train_eval_loss"))]),
    ("Tokens a second", "short", "series", [
        ("{{exported_job}}", 'cadre:job_tokens:rate2m{exported_job=~"$job"}')]),
    ("Steps a second", "short", "series", [
        ("{{exported_job}}", 'cadre:job_steps:rate2m{exported_job=~"$job"}')]),
    ("Step by phase, slowest rank", "s", "stacked", [
        (phase, phase_mean(phase))
        for phase in ("data", "wait", "forward", "backward", "reduce",
                      "optimizer")]),
    ("Inside passes and optimizer, share of the step", "percentunit",
     "stacked", [
         (phase, phase_share(phase))
         for phase in ("attention", "router", "dispatch", "experts", "combine",
                       "dense_mlp", "loss", "other", "optimizer")]),
    ("Model FLOPs utilisation", "percentunit", "series", [
        ("slowest {{exported_job}}", 'cadre:job_mfu:min{exported_job=~"$job"}'),
        ("fastest {{exported_job}}", by_job("cadre_train_mfu_ratio"))]),
    ("Memory by pool in the last step, largest rank", "bytes", "stacked", [
        ("{{pool}}", "max by (pool) (cadre_device_memory_bytes"
         '{pool!~"other|free"} ' + JOIN + ")")]),
    ("Memory by pool, peak of the attempt, largest rank", "bytes", "stacked", [
        ("{{pool}}", "max by (pool) (cadre_device_memory_peak_bytes " + JOIN +
         ")")]),
    ("Memory against the plan", "bytes", "series", [
        ("planned", by_job("cadre_train_memory_planned_bytes")),
        ("largest rank", by_job(
            "sum by (instance) (cadre_device_memory_peak_bytes)"))]),
    ("Device memory that is free or others', smallest", "bytes", "series", [
        ("free {{exported_job}}", by_job(
            'cadre_device_memory_bytes{pool="free"}', "min")),
        ("other {{exported_job}}", by_job(
            'cadre_device_memory_bytes{pool="other"}', "min"))]),
    ("Gradient norm", "none", "series", [
        ("{{exported_job}}", by_job("cadre_train_grad_norm"))]),
    ("Learning rate", "none", "series", [
        ("{{exported_job}}", by_job("cadre_train_learning_rate"))]),
    ("Real tokens in packed rows", "percentunit", "series", [
        ("{{exported_job}}", by_job("cadre_train_packing_fill_ratio"))]),
    ("Skipped steps (not finite)", "short", "series", [
        ("{{exported_job}}", by_job(
            "increase(cadre_train_nonfinite_steps_total[1h])"))]),
    ("Age of the newest checkpoint", "s", "series", [
        ("{{exported_job}}",
         'cadre:job_checkpoint_age_seconds{exported_job=~"$job"}')]),
    ("Training stalled by saves, share of time", "percentunit", "series", [
        ("{{exported_job}}", by_job(
            rate("cadre_checkpoint_save_seconds_sum", '{phase="stall"}')))]),
    ("Collectives, share of time by kind", "percentunit", "stacked", [
        ("{{op}}", "max by (op) (" +
         rate("cadre_comm_seconds_sum", by="instance, op") + " " + JOIN +
         ")")]),
    ("Bytes into collectives", "Bps", "stacked", [
        ("{{op}}", "sum by (op) (" +
         rate("cadre_comm_bytes_total", by="instance, op") + " " + JOIN +
         ")")]),
]

EXPERTS = [
    ("Balance of the experts, 1 is even", "percentunit", "series", [
        ("all layers {{exported_job}}", by_job(
            'cadre_moe_expert_balancedness_ratio{stat="step"}')),
        ("worst layer {{exported_job}}", by_job(
            'cadre_moe_expert_balancedness_ratio{stat="worst_layer"}',
            "min"))]),
    ("Balance of the expert-parallel ranks, 1 is even", "percentunit",
     "series", [
         ("all layers {{exported_job}}",
          'cadre:job_rank_balancedness:step{exported_job=~"$job"}'),
         ("worst layer {{exported_job}}", by_job(
             'cadre_moe_rank_balancedness_ratio{stat="worst_layer"}',
             "min"))]),
    ("Dropped and remapped pairs, share of those routed", "percentunit",
     "series", [
         ("dropped {{exported_job}}",
          'cadre:job_dropped_tokens:ratio5m{exported_job=~"$job"}'),
         ("remapped {{exported_job}}",
          'cadre:job_remapped_tokens:ratio5m{exported_job=~"$job"}')]),
    ("All-to-all a step, slowest rank", "s", "series", [
        (direction, by_job(
            "(" + rate("cadre_moe_all_to_all_seconds_sum",
                       f'{{direction="{direction}"}}') + " / (" +
            rate("cadre_moe_all_to_all_seconds_count",
                 f'{{direction="{direction}"}}') + " > 0))"))
        for direction in ("dispatch", "combine")]),
    ("All-to-all that computing waits for, share of the step", "percentunit",
     "series", [
         ("{{exported_job}}", "cadre:job_exposed_all_to_all:ratio5m"
          '{exported_job=~"$job"}')]),
    ("All-to-all bytes by how far they go", "Bps", "stacked", [
        ("{{tier}}", "sum by (tier) (" +
         rate("cadre_moe_all_to_all_bytes_total", by="instance, tier") +
         " " + JOIN + ")")]),
    ("All-to-all bytes to other ranks by direction", "Bps", "stacked", [
        ("{{direction}}", "sum by (direction) (" +
         rate("cadre_moe_all_to_all_bytes_total", '{tier!="self"}',
              "instance, direction") + " " + JOIN + ")")]),
    ("Placements put in force in the last hour", "short", "series", [
        ("{{exported_job}}", by_job(
            "increase(cadre_moe_rebalance_seconds_count[1h])"))]),
    ("Decisions on placements in the last hour, all jobs", "short", "series", [
        ("{{result}}", "sum by (result) "
         "(increase(cadre_moe_rebalances_total[1h]))")]),
    ("Coefficient of variation of expert loads", "none", "series", [
        ("mean", by_job('cadre_moe_expert_load_cv_ratio{stat="mean"}')),
        ("worst layer", by_job('cadre_moe_expert_load_cv_ratio{stat="max"}'))]),
    ("Experts without a token", "percentunit", "series", [
        ("mean", by_job('cadre_moe_dead_expert_ratio{stat="mean"}')),
        ("worst layer", by_job('cadre_moe_dead_expert_ratio{stat="max"}'))]),
    ("Load-balance loss", "none", "series", [
        ("{{exported_job}}", by_job("cadre_moe_aux_loss"))]),
    ("Token-expert pairs routed a second", "short", "series", [
        ("{{exported_job}}", by_job(
            rate("cadre_moe_routed_tokens_total"), "sum"))]),
]

DASHBOARDS = {
    "fleet": ("Cadre: fleet", FLEET, False),
    "training": ("Cadre: training", TRAINING, True),
    "experts": ("Cadre: experts", EXPERTS, True),
}

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(number, row):
    title, unit, kind, queries = row
    stacked = kind == "stacked"
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": DATASOURCE,
        "gridPos": {"h": 8, "w": 12, "x": number % 2 * 12,
                    "y": number // 2 * 8},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "custom": {
                    "drawStyle": "line",
                    "fillOpacity": 30 if stacked else 0,
                    "lineWidth": 1,
                    "showPoints": "never",
                    "spanNulls": False,
                    "stacking": {"mode": "normal" if stacked else "none"},
                },
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend,
             "datasource": DATASOURCE}
            for i, (legend, query) in enumerate(queries)
        ],
    }


def variables(with_job):
    found = [{
        "name": "datasource", "label": "Data source", "type": "datasource",
        "query": "prometheus", "current": {"text": "cadre", "value": "cadre"},
    }]
    if with_job:
        query = "label_values(cadre_worker_assignment_info, exported_job)"
        found.append({
            "name": "job", "label": "Job", "type": "query",
            "datasource": DATASOURCE, "definition": query,
            "query": {"query": query, "refId": "job"}, "refresh": 2,
            "includeAll": True, "allValue": ".+", "multi": True, "sort": 1,
            "current": {"text": ["All"], "value": ["$__all"]},
        })
    return found


def dashboard(name):
    title, rows, with_job = DASHBOARDS[name]
    return {
        "uid": f"cadre-{name}",
        "title": title,
        "tags": ["cadre"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["cadre"], "title": "Cadre",
                   "asDropdown": False, "includeVars": True,
                   "keepTime": True}],
        "templating": {"list": variables(with_job)},
        "annotations": {"list": []},
        "panels": [panel(i, row) for i, row in enumerate(rows)],
    }


def main():
    if sys.argv[1] == "--queries":
        for name, (_, rows, _) in DASHBOARDS.items():
            for title, _, _, queries in rows:
                for _, query in queries:
                    print(name, title, query, sep="\t")
        return
    folder = pathlib.Path(sys.argv[1])
    for name in DASHBOARDS:
        text = json.dumps(dashboard(name), indent=1) + "\n"
        (folder / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
