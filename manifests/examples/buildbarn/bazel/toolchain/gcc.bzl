load("@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl", "feature", "flag_group", "flag_set", "tool_path")
load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")

def _gcc(ctx):
    tools = {tool: "/usr/bin/" + tool for tool in ("ar", "cpp", "gcc", "gcov", "ld", "nm", "objdump", "strip")}
    link = flag_set(
        actions = [ACTION_NAMES.cpp_link_executable],
        flag_groups = [flag_group(flags = ["-lstdc++"])],
    )
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        toolchain_identifier = "gcc",
        host_system_name = "linux",
        target_system_name = "linux",
        target_cpu = "k8",
        target_libc = "glibc",
        compiler = "gcc",
        abi_version = "gcc",
        abi_libc_version = "glibc",
        cxx_builtin_include_directories = ["/usr/include", "/usr/lib/gcc"],
        tool_paths = [tool_path(name = name, path = path) for name, path in tools.items()],
        features = [feature(name = "libraries", enabled = True, flag_sets = [link])],
    )

gcc = rule(implementation = _gcc, provides = [CcToolchainConfigInfo])
