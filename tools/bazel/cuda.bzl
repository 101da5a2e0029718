"""cuda_library: .cu files compiled by nvcc, linked like any cc_library."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# One entry per architecture. compute_90a code has no forward-compatible PTX,
# so compute_90 PTX is kept beside it for later chips.
DEFAULT_GENCODE = [
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_90,code=compute_90",
]

def _add_options(ctx, args, cc_toolchain, compilation, mode):
    args.add("-std=c++20")
    args.add("--expt-relaxed-constexpr")
    args.add("--extended-lambda")
    args.add("-ccbin", cc_toolchain.compiler_executable)
    args.add("-Xcompiler", "-fPIC,-Wall")
    if mode == "opt":
        args.add_all(["-O3", "-lineinfo", "-DNDEBUG"])
    elif mode == "dbg":
        args.add_all(["-O0", "-g", "-G"])
    else:
        args.add_all(["-O2", "-lineinfo"])
    args.add_all(ctx.attr.gencode)
    args.add_all(ctx.attr.copts)
    args.add_all(compilation.defines, before_each = "-D")
    args.add_all(["-I", ".", "-I", ctx.bin_dir.path])
    args.add_all(compilation.includes, before_each = "-I")
    args.add_all(compilation.quote_includes, before_each = "-I")
    args.add_all(compilation.system_includes, before_each = "-isystem")

def _compilation_context(ctx):
    return cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context

_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"}

def _cuda_objects_impl(ctx):
    cc_toolchain = find_cpp_toolchain(ctx)
    compilation = _compilation_context(ctx)
    objects = []
    for src in ctx.files.srcs:
        if src.extension != "cu":
            continue
        obj = ctx.actions.declare_file("_objs/%s/%s.pic.o" % (ctx.label.name, src.basename[:-3]))
        objects.append(obj)
        args = ctx.actions.args()
        args.add("-c", src)
        args.add("-o", obj)
        _add_options(ctx, args, cc_toolchain, compilation, ctx.var["COMPILATION_MODE"])
        ctx.actions.run(
            executable = ctx.file._nvcc,
            arguments = [args],
            inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = [compilation.headers]),
            tools = cc_toolchain.all_files,
            outputs = [obj],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            env = _ENV,
        )
    return [DefaultInfo(files = depset(objects))]

# What ptxas says of each kernel, a text file a source. Always with
# optimization: without, everything lies in local memory.
def _cuda_resources_impl(ctx):
    cc_toolchain = find_cpp_toolchain(ctx)
    compilation = _compilation_context(ctx)
    reports = []
    for src in ctx.files.srcs:
        if src.extension != "cu":
            continue
        report = ctx.actions.declare_file("%s/%s.txt" % (ctx.label.name, src.basename[:-3]))
        cubin = ctx.actions.declare_file("%s/%s.cubin" % (ctx.label.name, src.basename[:-3]))
        reports.append(report)
        args = ctx.actions.args()
        args.add(report)
        args.add(ctx.file._nvcc)
        args.add("-cubin", src)
        args.add("-o", cubin)
        args.add("-Xptxas", "-v")
        _add_options(ctx, args, cc_toolchain, compilation, "opt")
        ctx.actions.run_shell(
            # Temporary names are made of process numbers, which are the same in
            # every sandbox.
            command = 'report=$1; shift; export TMPDIR=$(mktemp -d) && "$@" 2> "$report"; ' +
                      'code=$?; rm -rf "$TMPDIR"; [ $code = 0 ] || cat "$report" >&2; exit $code',
            arguments = [args],
            inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = [compilation.headers]),
            tools = depset([ctx.file._nvcc], transitive = [cc_toolchain.all_files]),
            outputs = [report, cubin],
            mnemonic = "CudaResources",
            progress_message = "Asking ptxas about %s" % src.short_path,
            env = _ENV,
        )
    return [DefaultInfo(
        files = depset(reports),
        runfiles = ctx.runfiles(files = reports),
    )]

_ATTRS = {
    "srcs": attr.label_list(allow_files = [".cu", ".cuh", ".h"]),
    "hdrs": attr.label_list(allow_files = True),
    "deps": attr.label_list(providers = [CcInfo]),
    "copts": attr.string_list(),
    "gencode": attr.string_list(),
    "_nvcc": attr.label(
        default = "@cuda//:bin/nvcc",
        allow_single_file = True,
        executable = True,
        cfg = "exec",
    ),
    "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
}

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = _ATTRS,
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    fragments = ["cpp"],
)

_cuda_resources = rule(
    implementation = _cuda_resources_impl,
    attrs = _ATTRS,
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    fragments = ["cpp"],
)

# A target with this is skipped by //... unless --config=cuda is given.
REQUIRES_CUDA = select({
    "//tools/config:cuda_enabled": [],
    "//conditions:default": ["//tools/config:incompatible"],
})

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], gencode = DEFAULT_GENCODE, **kwargs):
    """A cc_library whose sources are CUDA C++.

    NAME_resources, built on demand, are reports of its kernels' registers,
    stack and spills on sm_90a; tools/kernel_resources.py reads them.

    Args:
      name: the library's name.
      srcs: .cu files, and .cuh/.h private to them.
      hdrs: public headers.
      deps: cc_library targets; their headers are seen by nvcc too.
      copts: further options for nvcc.
      gencode: -gencode options.
      **kwargs: passed on to cc_library.
    """
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + ["@cuda//:headers"],
        copts = copts,
        gencode = gencode,
        tags = ["manual"],
        target_compatible_with = REQUIRES_CUDA,
    )
    _cuda_resources(
        name = name + "_resources",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + ["@cuda//:headers"],
        copts = copts,
        gencode = DEFAULT_GENCODE[:1],
        tags = ["manual"],
        target_compatible_with = REQUIRES_CUDA,
    )
    native.cc_library(
        name = name,
        srcs = [":" + name + "_objects"],
        hdrs = hdrs,
        deps = deps + ["@cuda//:cudart"],
        target_compatible_with = REQUIRES_CUDA,
        **kwargs
    )
