"""Balance, dropped and remapped pairs of a job whose routing is forced.

The routers of a generated model do not see their tokens: their weights are
zero and the correction bias alone ranks the experts. So what every token does
is known from the model's files, and this test works out from them, by the
documented rules and with code of its own, what the daemons must export.
"""

import json
import math
import pathlib
import struct
import unittest

from tests.cli import harness

EXAMPLE = pathlib.Path("WORKSPACE").resolve().parent / "examples/tiny_moe/base"
ROW_TOKENS = 64
ROWS_PER_STEP = 4
STEPS = 12
RANKS = 2
CAPACITY_FACTOR = 1.25
REMAP_ROUNDS = 8
# The experts that each MoE layer prefers, best first; the rest follows in
# order. One layer loads one rank alone, one both alike, one two to one.
PREFERRED = ([0, 1, 2, 3], [4, 12, 5, 13], [9, 10, 2, 11])


def read_tensors(path):
    """The header and the bytes behind it."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), bytearray(raw[8 + size:])


def write_tensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Skewed:
    """A copy of the example's base whose routers prefer what they are told."""

    def __init__(self, folder):
        folder.mkdir()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((EXAMPLE / name).read_bytes())
        config = json.loads((folder / "config.json").read_text())
        self.experts = config["num_experts"]
        self.top_k = config["num_experts_per_token"]
        self.width = config["hidden_size"]
        header, data = read_tensors(EXAMPLE / "model.safetensors")
        self.orders = []
        gates = sorted(name for name in header if name.endswith("gate.weight"))
        for name, preferred in zip(gates, PREFERRED, strict=True):
            begin, end = header[name]["data_offsets"]
            data[begin:end] = bytes(end - begin)
            order = preferred + [e for e in range(self.experts)
                                 if e not in preferred]
            bias = [0.0] * self.experts
            for place, expert in enumerate(order):
                bias[expert] = float(self.experts - place)
            begin, end = header[name.replace(
                "gate.weight",
                "gate.e_score_correction_bias")]["data_offsets"]
            data[begin:end] = struct.pack(f"<{self.experts}f", *bias)
            self.orders.append(order)
        write_tensors(folder / "model.safetensors", header, data)

    def loads(self):
        """Tokens by layer and expert of a step."""
        tokens = ROW_TOKENS * ROWS_PER_STEP
        return [[tokens if e in order[:self.top_k] else 0
                 for e in range(self.experts)] for order in self.orders]

    def overflow(self, remap):
        """Dropped and moved pairs of a step and the tokens that each expert
        of each layer computes, by parallelism.md section 7.

        A row is a micro-batch here. All tokens weigh their experts alike, so
        an expert takes the first ones.
        """
        capacity = min(ROW_TOKENS, math.ceil(
            CAPACITY_FACTOR * ROW_TOKENS * self.top_k / self.experts))
        dropped = moved = 0
        computed = []
        for order in self.orders:
            room = {expert: capacity for expert in order}
            holds = [set() for _ in range(ROW_TOKENS)]
            excess = []  # tokens, once for each pair
            for expert in order[:self.top_k]:
                for token in range(ROW_TOKENS):
                    if room[expert] > 0:
                        room[expert] -= 1
                        holds[token].add(expert)
                    else:
                        excess.append(token)
            refused = {token: set(order[:self.top_k]) - holds[token]
                       for token in range(ROW_TOKENS)}
            candidates = order[:self.top_k + REMAP_ROUNDS]
            for _ in range(REMAP_ROUNDS if remap else 0):
                open_now = {e for e in candidates if room[e] > 0}
                proposals = {}  # expert -> tokens
                for token in sorted(set(excess)):
                    free = [e for e in candidates if e in open_now and
                            e not in holds[token] | refused[token]]
                    for expert in free[:excess.count(token)]:
                        proposals.setdefault(expert, []).append(token)
                for expert, tokens in proposals.items():
                    for token in tokens[:room[expert]]:
                        holds[token].add(expert)
                        excess.remove(token)
                        moved += 1
                    for token in tokens[room[expert]:]:
                        refused[token].add(expert)
                    room[expert] -= min(room[expert], len(tokens))
            dropped += len(excess)
            computed.append([ROWS_PER_STEP * sum(e in held for held in holds)
                             for e in range(self.experts)])
        return dropped * ROWS_PER_STEP, moved * ROWS_PER_STEP, computed


def balance(layers):
    """Sum of means over sum of maxima, and the worst layer's mean / max."""
    means = [sum(layer) / len(layer) for layer in layers]
    peaks = [max(layer) for layer in layers]
    return (sum(means) / sum(peaks),
            min(m / p for m, p in zip(means, peaks)))


def deviation(layer):
    mean = sum(layer) / len(layer)
    return math.sqrt(sum((x - mean) ** 2 for x in layer) / len(layer)) / mean


class SkewTest(harness.TestCase):

    def setUp(self):
        super().setUp()
        self.model = Skewed(self.folder / "model")
        words = "we the people of the united states in order to form".split()
        # Longer than a row each, so that every slot holds a real token.
        self.write("train.jsonl", "".join(
            json.dumps({"text": " ".join(words[(i + j) % len(words)]
                                         for j in range(3 * ROW_TOKENS))}) +
            "\n" for i in range(ROWS_PER_STEP)))
        self.coordinator = self.start_coordinator()
        self.workers = []
        self.started = 0
        self.slow = self.folder / "slow"

    def start_workers(self, domains):
        """In place of those there are; None: without a link domain."""
        for worker in self.workers:
            worker.stop()
        self.workers = []
        for index, domain in enumerate(domains):
            name = f"worker-{self.started}"
            self.started += 1
            config = self.write(f"{name}.textproto",
                                f'link_domain: "{domain}"' if domain else "")
            worker = harness.Daemon(
                harness.WORKER,
                ["--insecure", f"--coordinator={self.coordinator.address}",
                 f"--config={config}",
                 "--device=cpu", "--metrics-listen=127.0.0.1:0",
                 "--health-listen=off", f"--worker-id=skew.{index}"],
                self.folder, name,
                {"CADRE_FAILPOINTS": f"worker.step=slow:{self.slow}"})
            self.addCleanup(worker.stop)
            self.workers.append(worker)

    def gauges(self):
        return [harness.scrape(worker.port("metrics"))
                for worker in self.workers]

    def total(self, name):
        return sum(values[name] for values in self.gauges())

    def run_job(self, policy):
        """Its gauges while it ran, growth of its counters, its scalars."""
        names = [f"cadre_moe_{kind}_tokens_total"
                 for kind in ("routed", "dropped", "remapped")]
        before = {name: self.total(name) for name in names}
        moe = (f"{{overflow_policy: {policy}, rebalance: off" +
               ("" if policy == "dropless" else
                f", capacity_factor: {CAPACITY_FACTOR}") + "}")
        self.write_job(
            data=f"{{train: [train.jsonl], format: text, "
                 f"max_seq_len: {ROW_TOKENS}}}",
            tuning="{method: lora, lora_rank: 2, "
                   "lora_target_modules: [o_proj]}",
            parallelism=f"{{expert_parallel_size: {RANKS}}}",
            training=f"{{max_steps: {STEPS}, micro_batch_size: 1, "
                     f"global_batch_size: {ROWS_PER_STEP}}}",
            moe=moe, model="{path: model, dtype: fp32}")
        # Until its gauges are read: they go with the job.
        self.slow.touch()
        known = {job["name"] for job in self.coordinator.jobs()}
        result = self.coordinator.cadre("submit", "job.yaml")
        self.assertEqual(result.returncode, 0, result.stderr)
        name = next(job["name"] for job in self.coordinator.jobs()
                    if job["name"] not in known).removeprefix("jobs/")

        def routed():
            seen = self.gauges()[0]
            step = 'cadre_moe_expert_balancedness_ratio{stat="step"}'
            return seen if not math.isnan(seen[step]) else None

        seen = harness.wait_for(routed, "the first step")
        self.slow.unlink()
        watched = self.coordinator.cadre("watch", name)
        self.assertEqual(watched.returncode, 0, watched.stderr)
        growth = [self.total(metric) - before[metric] for metric in names]
        scalars = {}
        for series in self.coordinator.json("series", name):
            scalars[series["name"]] = [point.get("value", 0)
                                       for point in series["points"]]
        return seen, growth, scalars

    def exchanged(self):
        """Bytes of a step over all ranks: to itself and to the other one, by
        direction, as docs/expert_parallelism.md has them."""
        per_rank = self.model.experts // RANKS
        batches = ROWS_PER_STEP // RANKS  # of each rank
        bytes_of = {(direction, away): 0
                    for direction in ("dispatch", "combine")
                    for away in (False, True)}
        for order in self.model.orders:
            for source in range(RANKS):
                for target in range(RANKS):
                    chosen = sum(expert // per_rank == target
                                 for expert in order[:self.model.top_k])
                    rows = ROW_TOKENS if chosen else 0
                    row, pairs = 4 * self.model.width, ROW_TOKENS * chosen
                    away = source != target
                    # Sizes, rows with slots and weights; then gradients.
                    bytes_of["dispatch", away] += batches * (
                        16 + rows * row + 8 * pairs + rows * row)
                    # Back from the experts, and what the way back gives.
                    bytes_of["combine", away] += batches * (
                        rows * row + rows * row + 4 * pairs)
        return bytes_of

    def tiers(self):
        return {(direction, tier): self.total(
            "cadre_moe_all_to_all_bytes_total"
            f'{{direction="{direction}",tier="{tier}"}}')
                for direction in ("dispatch", "combine")
                for tier in ("self", "link", "network")}

    def test_bytes_between_ranks_count_by_how_far_they_go(self):
        expected = self.exchanged()
        for domains, tier in ((("rack-1", "rack-2"), "network"),
                              (("rack-1", "rack-1"), "link"),
                              # Both stand for their one host.
                              ((None, None), "link")):
            with self.subTest(domains):
                self.start_workers(domains)
                self.run_job("dropless")
                seen = self.tiers()
                for direction in ("dispatch", "combine"):
                    self.assertEqual(seen[direction, "self"],
                                     STEPS * expected[direction, False])
                    for each in ("link", "network"):
                        self.assertEqual(
                            seen[direction, each],
                            STEPS * expected[direction, True]
                            if each == tier else 0, (direction, each))

    def test_exported_figures_are_those_of_the_models_files(self):
        self.start_workers([None] * RANKS)
        loads = self.model.loads()
        per_rank = self.model.experts // RANKS
        expert_step, expert_worst = balance(loads)

        def rank_balance(computed):
            return balance([[sum(layer[r * per_rank:(r + 1) * per_rank])
                             for r in range(RANKS)] for layer in computed])

        routed = sum(map(sum, loads))
        # The skew is what it is meant to be.
        self.assertEqual((expert_step, rank_balance(loads)[1]), (0.25, 0.5))
        for policy in ("dropless", "drop_by_weight", "remap"):
            with self.subTest(policy):
                dropped, moved, computed = (
                    (0, 0, loads) if policy == "dropless" else
                    self.model.overflow(policy == "remap"))
                # Of ranks: what they compute, not what the routers asked for.
                rank_step, rank_worst = rank_balance(computed)
                seen, growth, scalars = self.run_job(policy)
                for series, value in {
                        'expert_balancedness_ratio{stat="step"}': expert_step,
                        'expert_balancedness_ratio{stat="worst_layer"}':
                            expert_worst,
                        'rank_balancedness_ratio{stat="step"}': rank_step,
                        'rank_balancedness_ratio{stat="worst_layer"}':
                            rank_worst,
                        'expert_load_cv_ratio{stat="max"}':
                            max(map(deviation, loads)),
                        'dead_expert_ratio{stat="mean"}':
                            1 - self.model.top_k / self.model.experts,
                }.items():
                    self.assertAlmostEqual(seen["cadre_moe_" + series], value,
                                           6, series)
                self.assertEqual(growth, [STEPS * routed, STEPS * dropped,
                                          STEPS * moved])
                for metric, value in {"dropped_pairs": dropped,
                                      "remapped_pairs": moved,
                                      "expert_balancedness": expert_step,
                                      "rank_balancedness": rank_step}.items():
                    self.assertEqual(len(scalars[metric]), STEPS)
                    for each in scalars[metric]:
                        self.assertAlmostEqual(each, value, 6, metric)


if __name__ == "__main__":
    unittest.main()
