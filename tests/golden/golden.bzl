"""Unpacks the golden fixture of one architecture for tests.

A test with `data = ["//tests/golden:kimi_linear"]` finds the files under
tests/golden/kimi_linear/ in its runfiles (its working directory).
"""

_LORA_RUNS = [
    "attn",
    "attn_experts",
    "router",
]

_FILES = [
    "forward.safetensors",
    "grads.safetensors",
    "model/config.json",
    "model/generation_config.json",
    "model/model.safetensors",
    "trajectory.json",
] + [
    "lora_%s_grads.safetensors" % run
    for run in _LORA_RUNS
] + [
    "lora_%s_%s/%s" % (run, when, file)
    for run in _LORA_RUNS
    for when in [
        "final",
        "init",
    ]
    for file in [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
]

def golden_model(name):
    """Declares :NAME, the files of NAME.tar.xz."""
    native.genrule(
        name = name,
        srcs = [name + ".tar.xz"],
        outs = ["%s/%s" % (name, file) for file in _FILES],
        cmd = "tar --no-same-owner -xJf $< -C $(RULEDIR)",
    )
