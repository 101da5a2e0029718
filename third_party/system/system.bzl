"""Makes C++ libraries that the operating system installed visible as @system//:NAME.

The headers live in the compiler's own search path (/usr/include), so a target
carries link options only. Every library lists a probe header and the Debian
package that brings it, so that a missing package is reported by name.
"""

_LIBDIRS = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]

# name: struct(package, header, shared, static, deps)
#   shared: what to pass with -l in a normal build
#   static: archives for --config=portable; None means 'there is none, use shared'
_LIBRARIES = {
    "absl": struct(
        package = "libabsl-dev",
        header = "absl/strings/string_view.h",
        shared = ["*absl_*"],
        static = ["*absl_*"],
        deps = [],
    ),
    "protobuf": struct(
        package = "libprotobuf-dev",
        header = "google/protobuf/message.h",
        shared = ["protobuf"],
        static = ["protobuf"],
        deps = ["zlib"],
    ),
    "grpc": struct(
        package = "libgrpc++-dev",
        header = "grpcpp/grpcpp.h",
        shared = ["grpc++", "grpc", "gpr"],
        static = ["grpc++", "grpc", "gpr", "upb", "address_sorting", "re2", "cares"],
        deps = ["protobuf", "absl", "ssl", "zlib"],
    ),
    "grpc_reflection": struct(
        package = "libgrpc++-dev",
        header = "grpcpp/ext/proto_server_reflection_plugin.h",
        shared = ["grpc++_reflection"],
        static = ["grpc++_reflection"],
        deps = ["grpc"],
    ),
    "ssl": struct(
        package = "libssl-dev",
        header = "openssl/ssl.h",
        shared = ["ssl", "crypto"],
        static = ["ssl", "crypto"],
        deps = [],
    ),
    "zlib": struct(
        package = "zlib1g-dev",
        header = "zlib.h",
        shared = ["z"],
        static = ["z"],
        deps = [],
    ),
    "prometheus": struct(
        package = "prometheus-cpp-dev",
        header = "prometheus/exposer.h",
        shared = ["prometheus-cpp-pull", "prometheus-cpp-core"],
        static = None,
        deps = [],
    ),
    "gtest": struct(
        package = "libgtest-dev",
        header = "gtest/gtest.h",
        shared = ["gtest"],
        static = ["gtest"],
        deps = [],
    ),
    "gmock": struct(
        package = "libgmock-dev",
        header = "gmock/gmock.h",
        shared = ["gmock", "gtest"],
        static = ["gmock", "gtest"],
        deps = [],
    ),
    "gtest_main": struct(
        package = "libgmock-dev",
        header = "gmock/gmock.h",
        shared = ["gmock_main", "gmock", "gtest"],
        static = ["gmock_main", "gmock", "gtest"],
        deps = [],
    ),
    "sqlite3": struct(
        package = "libsqlite3-dev",
        header = "sqlite3.h",
        shared = ["sqlite3"],
        static = ["sqlite3"],
        deps = [],
    ),
    "openblas": struct(
        package = "libopenblas-dev",
        header = "x86_64-linux-gnu/cblas.h",
        shared = ["openblas"],
        static = None,
        deps = [],
    ),
    "gloo": struct(
        package = "libgloo-dev",
        header = "gloo/context.h",
        shared = ["gloo"],
        static = None,
        deps = [],
    ),
    "yaml_cpp": struct(
        package = "libyaml-cpp-dev",
        header = "yaml-cpp/yaml.h",
        shared = ["yaml-cpp"],
        static = None,
        deps = [],
    ),
    "pcre2": struct(
        package = "libpcre2-dev",
        header = "pcre2.h",
        shared = ["pcre2-8"],
        static = ["pcre2-8"],
        deps = [],
    ),
    "utf8proc": struct(
        package = "libutf8proc-dev",
        header = "utf8proc.h",
        shared = ["utf8proc"],
        static = ["utf8proc"],
        deps = [],
    ),
    "cli11": struct(
        package = "libcli11-dev",
        header = "CLI/CLI.hpp",
        shared = [],
        static = [],
        deps = [],
    ),
    "json": struct(
        package = "nlohmann-json3-dev",
        header = "nlohmann/json.hpp",
        shared = [],
        static = [],
        deps = [],
    ),
}

_TOOLS = {
    "protoc": struct(package = "protobuf-compiler", path = "/usr/bin/protoc"),
    "grpc_cpp_plugin": struct(package = "protobuf-compiler-grpc", path = "/usr/bin/grpc_cpp_plugin"),
}

def _find(rctx, filename):
    for directory in _LIBDIRS:
        candidate = rctx.path(directory + "/" + filename)
        if candidate.exists:
            return str(candidate)
    return None

def _glob_absl(rctx, suffix):
    """Names of all installed Abseil libraries, without prefix and suffix."""
    names = []
    for entry in rctx.path(_LIBDIRS[0]).readdir():
        base = entry.basename
        if base.startswith("libabsl_") and base.endswith(suffix):
            names.append(base[len("lib"):-len(suffix)])
    return sorted(names)

def _link_names(rctx, patterns, suffix):
    names = []
    for pattern in patterns:
        if pattern == "*absl_*":
            names.extend(_glob_absl(rctx, suffix))
        else:
            names.append(pattern)
    return names

def _missing(name, package, what):
    return """
genrule(
    name = "{name}_missing",
    outs = ["{name}_missing.h"],
    cmd = "echo 'ERROR: {what} not found. Run: apt-get install {package}' >&2; exit 1",
)

cc_library(
    name = "{name}",
    hdrs = [":{name}_missing.h"],
    srcs = [":{name}_missing.h"],
)
""".format(name = name, package = package, what = what)

def _impl(rctx):
    build = ['package(default_visibility = ["//visibility:public"])\n']
    for name, lib in _LIBRARIES.items():
        absent = None
        if not rctx.path("/usr/include/" + lib.header).exists:
            absent = lib.header
        shared = _link_names(rctx, lib.shared, ".so")
        static = None if lib.static == None else _link_names(rctx, lib.static, ".a")
        for item in shared:
            # -lNAME takes the archive where there is no shared library (gtest).
            if not _find(rctx, "lib%s.so" % item) and not _find(rctx, "lib%s.a" % item):
                absent = absent or "lib%s.so" % item
        for item in (static or []):
            if not _find(rctx, "lib%s.a" % item):
                absent = absent or "lib%s.a" % item
        if absent:
            build.append(_missing(name, lib.package, absent))
            continue

        # Dynamic: --as-needed keeps unused libraries out of DT_NEEDED.
        # (-Wl,--push-state keeps it from leaking to later options.)
        dynamic = []
        if shared:
            dynamic = ["-Wl,--push-state,--as-needed"] + ["-l" + item for item in shared] + ["-Wl,--pop-state"]
        portable = dynamic
        if static != None:
            portable = []
            if static:
                portable = ["-Wl,--start-group"] + ["-l:lib%s.a" % item for item in static] + ["-Wl,--end-group"]
            if name in ["ssl", "sqlite3"]:
                portable.append("-ldl")
            if name == "grpc":
                portable.append("-lrt")
        build.append("""
cc_library(
    name = "{name}",
    linkopts = select({{
        "@//tools/config:portable_enabled": {portable},
        "//conditions:default": {dynamic},
    }}) + ["-pthread"],
    deps = {deps},
)
""".format(
            name = name,
            portable = portable,
            dynamic = dynamic,
            deps = [":" + dep for dep in lib.deps],
        ))

    exported = []
    for name, tool in _TOOLS.items():
        if rctx.path(tool.path).exists:
            rctx.symlink(tool.path, "bin/" + name)
        else:
            rctx.file(
                "bin/" + name,
                "#!/bin/sh\necho 'ERROR: %s not found. Run: apt-get install %s' >&2\nexit 1\n" % (tool.path, tool.package),
                executable = True,
            )
        exported.append("bin/" + name)
    build.append("\nexports_files(%s)\n" % repr(exported))
    rctx.file("BUILD.bazel", "".join(build))

system_libraries = repository_rule(
    implementation = _impl,
    configure = True,  # re-run by 'bazel sync --configure' after apt-get install
    local = True,
    doc = "Probes the machine's C++ libraries.",
)
