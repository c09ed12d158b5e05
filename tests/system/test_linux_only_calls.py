"""List every call that only Linux has, and test that a guard keeps each of them from running on a Mac."""

import ast
from collections.abc import Iterable, Iterator

import pytest

from tools.source.structure import ROOT, nodes_of, sources

# calls whose availability in Python's documentation is Linux without macOS
MODULES = {
    "os": {
        "sched_getaffinity",
        "sched_setaffinity",
        "sched_setscheduler",
        "sched_getscheduler",
        "memfd_create",
        "eventfd",
        "pidfd_open",
        "copy_file_range",
        "splice",
        "posix_fadvise",
        "posix_fallocate",
        "fdatasync",
        "pipe2",
        "getrandom",
        "setns",
        "unshare",
        "O_TMPFILE",
        "O_DIRECT",
        "O_PATH",
        "getxattr",
        "setxattr",
        "listxattr",
        "removexattr",
        "getresuid",
        "preadv2",
        "pwritev2",
        "timerfd_create",
    },
    "resource": {
        "RLIMIT_AS",
        "prlimit",
        "RLIMIT_MSGQUEUE",
        "RLIMIT_NICE",
        "RLIMIT_RTPRIO",
        "RLIMIT_RTTIME",
        "RLIMIT_SIGPENDING",
        "RUSAGE_THREAD",
    },
    "signal": {
        "SIGPWR",
        "SIGPOLL",
        "SIGSTKFLT",
        "SIGRTMIN",
        "SIGRTMAX",
        "sigwaitinfo",
        "sigtimedwait",
        "pidfd_send_signal",
    },
    "select": {"epoll"},
    "socket": {
        "AF_NETLINK",
        "AF_PACKET",
        "AF_VSOCK",
        "AF_ALG",
        "SO_PEERCRED",
        "SOCK_CLOEXEC",
        "SOCK_NONBLOCK",
        "TCP_QUICKACK",
        "TCP_USER_TIMEOUT",
        "TCP_KEEPIDLE",
        "SO_BINDTODEVICE",
    },
    "fcntl": {"F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_OFD_SETLK", "F_NOTIFY"},
    "mmap": {"MAP_POPULATE", "MAP_STACK", "MADV_HUGEPAGE", "MADV_DONTFORK"},
    "time": {"CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"},
    "platform": {"freedesktop_os_release", "libc_ver"},
}
PLACES = ("/proc", "/sys", "/dev/shm", "/etc/os-release")
LIBRARY_CALLS = {"mallopt", "malloc_trim", "prctl", "gettid", "syscall"}  # functions of the C library
# (file, name) → text in the same function, or for a constant in the same file, that keeps the call from a Mac
GUARDS = {
    ("ane/backends/torch/device.py", "mallopt"): 'sys.platform == "linux"',
    ("ane/backends/torch/device.py", "malloc_trim"): 'sys.platform == "linux"',
    ("ane/backends/torch/threads.py", "/proc/self/task"): "except (OSError, IndexError, ValueError)",
    ("ane/backends/torch/threads.py", "/proc/stat"): "except (OSError, IndexError, ValueError)",
    ("ane/system/child_process.py", "RLIMIT_AS"): 'sys.platform == "darwin"',
    ("ane/system/machine.py", "sched_getaffinity"): 'hasattr(os, "sched_getaffinity")',
    ("ane/system/machine.py", "/proc/"): "except OSError",
    ("ane/system/machine.py", "/proc/cpuinfo"): "except OSError",
    ("ane/system/machine.py", "freedesktop_os_release"): "except OSError",
}


def linux_only(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield each name that only Linux has, and its node."""
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in MODULES.get(node.value.id, ())
        ):
            yield node.attr, node
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node) for alias in node.names if alias.name in MODULES.get(node.module or "", ()))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and (node.value.startswith(PLACES) or node.value in LIBRARY_CALLS)
        ):
            yield node.value, node


def found_calls() -> Iterator[tuple[str, str, str]]:
    """Yield the file, the name and the text of the function around it, or of the file."""
    for file in sources("ane", "converters"):
        nodes = nodes_of(file)
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for name, node in linux_only(nodes):
            around = [one for one in functions if one.lineno <= node.lineno <= one.end_lineno]
            yield str(file.relative_to(ROOT)), name, ast.unparse(around[-1]) if around else file.read_text("utf-8")


def test_no_call_that_only_linux_has_is_without_a_guard() -> None:
    found = {(file, name): text for file, name, text in found_calls()}
    assert found.keys() == GUARDS.keys(), "guard it for macOS, and list it in GUARDS"
    for call, text in found.items():
        assert GUARDS[call].replace('"', "'") in text.replace('"', "'"), call


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.memfd_create('x')",
        "from resource import RLIMIT_AS",
        "open('/proc/self/maps')",
        "f'/sys/fs/{x}'",
        "getattr(library, 'mallopt')",
    ],
)
def test_a_new_one_is_found(code: str) -> None:
    assert len(list(linux_only([*ast.walk(ast.parse(code))]))) == 1
