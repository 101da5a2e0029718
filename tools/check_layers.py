#!/usr/bin/env python3
"""Checks the dependency rules between folders (docs/style.md, "Layers").

Reads the include lines of every source file and the labels of every BUILD file
of the tree that holds the given WORKSPACE file. Prints each forbidden edge and
exits 1 if there is one.
"""
import os
import re
import sys

# Folder -> folders it may use besides itself.
ALLOWED = {
    "base": {"proto"},
    "model": {"base", "kernels/common"},
    "kernels": {"base"},
    "plan": {"base", "proto", "model", "kernels/common"},
    "coordinator": {"base", "proto", "plan", "model", "kernels/common"},
    "worker": {"base", "proto", "plan", "model", "kernels"},
    "client": {"base", "proto", "plan", "model", "kernels/common"},
    "proto": set(),
}
# The engine: also linked into the CUDA plugin, where a second copy of generated
# protos would register twice.
ENGINE = ("worker/model/", "worker/train/", "worker/shard/", "worker/checkpoint/", "worker/data/", "worker/comm/", "worker/device/", "worker/moe/")
WIRE = re.compile(r'^(grpc|grpcpp|google/protobuf|google/rpc|cadre)/|\.pb\.h$|^base/(rpc|config|metrics)/')
# The only base parts that kernels may see: its top folder.
CUDA_HEADER = re.compile(r"^(cuda|cublas|nccl|nvtx|curand|cooperative_groups)")
CUDA_FOLDERS = ("kernels/", "worker/device/", "worker/comm/", "worker/backend/")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
LABEL = re.compile(r'"//([a-z_/]+)[:"]')
SKIP = {"third_party", "tests", "tools", "docs", "deploy", "examples"}


def allowed(source, target):
    top = source.split("/")[0]
    if target.split("/")[0] == top:
        return True
    return any(target == folder or target.startswith(folder + "/") for folder in ALLOWED[top])


def check_include(path, header):
    """A reason why `path` may not include `header`, or None."""
    first = header.split("/")[0]
    if first in ALLOWED or first == "tests":
        if first == "tests" or not allowed(path, os.path.dirname(header)):
            return "layer"
    if path.startswith("kernels/") and re.match(r"base/[a-z_]+/", header):
        return "kernels may use the top folder of base only"
    if path.startswith(ENGINE) and WIRE.search(header):
        return "the engine knows no protobuf and no gRPC"
    if CUDA_HEADER.match(header):
        if not path.startswith(CUDA_FOLDERS):
            return "CUDA headers belong to kernels/ and worker/{device,comm,backend}"
        if path.endswith(".h"):
            return "a .h must compile without CUDA (device code goes to .cuh)"
    return None


def main():
    if len(sys.argv) != 2:
        print("usage: check_layers.py WORKSPACE", file=sys.stderr)
        return 2
    root = os.path.dirname(os.path.realpath(sys.argv[1]))
    bad = []
    files = 0
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative == ".":
            folders[:] = [f for f in folders if f in ALLOWED]
            continue
        for name in names:
            path = os.path.join(relative, name)
            source = name.endswith((".h", ".cc", ".cu", ".cuh"))
            if not source and name != "BUILD.bazel":
                continue
            files += 1
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                for number, line in enumerate(f, 1):
                    if source:
                        match = INCLUDE.match(line)
                        reason = check_include(path, match.group(1)) if match else None
                        if reason:
                            bad.append(f"{path}:{number}: {match.group(1)}: {reason}")
                        continue
                    for label in LABEL.findall(line):
                        top = label.split("/")[0]
                        if top in ALLOWED and not allowed(relative, label):
                            bad.append(f"{path}:{number}: //{label}: layer")
    for line in sorted(bad):
        print(line)
    if files < 20:
        print(f"only {files} files found under {root}: is this the source tree?")
        return 1
    print(f"{files} files, {len(bad)} forbidden dependencies")
    return 1 if bad else 0


sys.exit(main())
