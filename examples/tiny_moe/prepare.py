#!/usr/bin/env python3
"""Makes everything the tiny example is trained from, out of Debian packages.

    apt-get install bible-kjv miscfiles
    examples/tiny_moe/prepare.py OUT

writes OUT/init/ (config.json and a byte-level BPE tokenizer: a model directory
without weights), OUT/kjv.jsonl (text to train the base model on) and
OUT/constitution.jsonl (conversations in another style, for the adapter).

Texts: the King James Bible (1611, copyright expired; package bible-kjv-text)
and the Constitution and the Declaration of Independence of the United States
(public domain; package miscfiles). Only Python's own library is used.
"""
import collections
import gzip
import json
import pathlib
import re
import subprocess
import sys

VOCAB = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Books that the base model reads: narrative, law, poetry, letters.
BOOKS = ["Ge", "Exo", "Lev", "Num", "Deu", "Psa", "Prv", "Eccl", "Mat", "Mark", "Luke", "John", "Acts", "Rom"]
CONFIG = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mlp_layer_types": ["dense"] + ["sparse"] * 3,
    "linear_num_heads": 4,
    "linear_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 16,
    "num_experts_per_token": 4,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
    "routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "model_max_length": 4096,
    "bos_token_id": None,
    "eos_token_id": VOCAB - 3,
    "pad_token_id": None,
    "dtype": "bfloat16",
}
# GPT-2's pre-tokenizer, for ASCII.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_symbols():
    """GPT-2's printable stand-in for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        if b in plain:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def train_bpe(texts, merges_wanted):
    """Most frequent pair first; ties by the pair's text, so runs repeat."""
    symbols = byte_symbols()
    counts = collections.Counter(w for t in texts for w in WORDS.findall(t))
    words = [([symbols[b] for b in w.encode()], n) for w, n in sorted(counts.items())]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (w, n) in enumerate(words):
        for pair in zip(w, w[1:]):
            pairs[pair] += n
            where[pair].add(i)
    merges = []
    while len(merges) < merges_wanted:
        best = max(pairs, key=lambda p: (pairs[p], p))
        if pairs[best] < 2:
            break
        merges.append(best)
        for i in sorted(where[best]):
            w, n = words[i]
            for pair in zip(w, w[1:]):
                pairs[pair] -= n
            new, j = [], 0
            while j < len(w):
                if j + 1 < len(w) and (w[j], w[j + 1]) == best:
                    new.append(w[j] + w[j + 1])
                    j += 2
                else:
                    new.append(w[j])
                    j += 1
            words[i] = (new, n)
            for pair in zip(new, new[1:]):
                pairs[pair] += n
                where[pair].add(i)
        del pairs[best]
    return merges


def tokenizer(texts):
    alphabet = sorted(byte_symbols().values(), key=lambda c: (ord(c) > 255, ord(c)))
    merges = train_bpe(texts, VOCAB - len(alphabet) - len(SPECIAL))
    tokens = alphabet + [a + b for a, b in merges]
    vocab = {t: i for i, t in enumerate(tokens)}
    added = [
        {"id": len(tokens) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, t in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }


def bible():
    """(book, passage): runs of verses of one chapter, about 800 bytes each."""
    out = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    chapters = collections.OrderedDict()
    for line in out.splitlines():
        match = re.match(r"(\w+?)(\d+):(\d+) (.*)", line)
        if match:
            chapters.setdefault((match.group(1), int(match.group(2))), []).append(match.group(4).strip())
    for (book, _), verses in chapters.items():
        passage = ""
        for verse in verses:
            passage = f"{passage} {verse}".strip()
            if len(passage) > 800:
                yield book, passage
                passage = ""
        if passage:
            yield book, passage


def paragraphs(name):
    text = gzip.open(f"/usr/share/state/{name}.gz", "rt").read()
    for block in re.split(r"\n\s*\n", text):
        block = " ".join(block.split())
        if len(block) > 120 and not block.startswith("The Constitution of"):
            yield block


def conversations():
    """Each paragraph: its opening words asked for, the rest answered."""
    for name, source in [("us-constitution", "the Constitution"), ("us-declaration", "the Declaration of Independence")]:
        for text in paragraphs(name):
            words = text.split()
            opening, rest = " ".join(words[:8]), " ".join(words[8:])
            yield {
                "messages": [
                    {"role": "user", "content": f"How does {source} go on after: {opening}"},
                    {"role": "assistant", "content": rest},
                ]
            }


def main():
    out = pathlib.Path(sys.argv[1])
    (out / "init").mkdir(parents=True, exist_ok=True)
    passages = list(bible())
    books = sorted({b for b, _ in passages})
    unknown = [b for b in BOOKS if b not in books]
    if unknown:
        sys.exit(f"no such books: {unknown}; there are: {books}")
    texts = [t for b, t in passages if b in BOOKS]
    talks = list(conversations())
    with open(out / "kjv.jsonl", "w") as f:
        f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
    with open(out / "constitution.jsonl", "w") as f:
        f.writelines(json.dumps(t) + "\n" for t in talks)
    tok = tokenizer(texts + [m["content"] for t in talks for m in t["messages"]])
    json.dump(tok, open(out / "init" / "tokenizer.json", "w"), ensure_ascii=False, indent=0)
    json.dump(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "model_max_length": CONFIG["model_max_length"]},
        open(out / "init" / "tokenizer_config.json", "w"),
        indent=1,
    )
    json.dump(CONFIG, open(out / "init" / "config.json", "w"), indent=1)
    print(f"{len(texts)} passages, {sum(map(len, texts))} bytes; {len(talks)} conversations; {len(tok['model']['merges'])} merges")


main()
