"""Start a module of this program in a child process. No other module starts child processes.

The child imports the same modules as this process, even if the working directory has modules with the same names. The
child's environment has no secrets. The child ends when this process ends. You can limit its memory, CPU time and files.

It runs as ``python -P child_process.py OPTIONS MODULE ARGUMENTS…``, where OPTIONS are JSON.
"""

import importlib.util
import json
import os
import resource
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

WATCH_SECONDS = 0.02  # time between two measurements of the resident memory
ROOT = str(Path(__file__).resolve().parents[2])
# a child gets these environment variables, but no others, such as tokens and keys
NAMES = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "TERM",
    "NO_COLOR",
    "VIRTUAL_ENV",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "DBUS_SESSION_BUS_ADDRESS",
    "LRU_CACHE_CAPACITY",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONWARNINGS",
    "PYTHONHASHSEED",
    "PYTHONDONTWRITEBYTECODE",
}
PREFIXES = (
    "ANE_",
    "LC_",
    "XDG_",
    "PULSE_",
    "PIPEWIRE_",
    "ALSA_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "ONEDNN_",
    "DNNL_",
    "CUDA_",
    "NVIDIA_",
    "TORCH_",
    "PYTORCH_",
    "MTL_",
    "LD_",
    "DYLD_",
    "MALLOC_",
    "GLIBC_",
    "COV_",
    "COVERAGE_",
)
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


class ChildProcess(subprocess.Popen):
    """A child process that runs a module of this program, or another program.

    Args:
        program: Name of a module, which runs as with ``python -m``, or the command line of another program. Other
            programs also get the reduced environment, but have no limits and do not end with this process.
        arguments: Further words of the command line.
        environment: Environment variables to add.
        memory, cpu_seconds, file_bytes: Limits for the child's memory (bytes), its CPU time (seconds) and the size of a
            file that it writes (bytes). ``None`` means no limit. On macOS, ``memory`` limits the resident memory, which
            the child measures itself.
        streams: ``stdin``, ``stdout``, ``stderr`` and ``text`` of ``subprocess.Popen``. By default, standard input is
            closed, and the child shares the other streams with this process.
    """

    def __init__(
        self,
        program: str | Sequence[str],
        arguments: Iterable[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        memory: int | None = None,
        cpu_seconds: int | None = None,
        file_bytes: int | None = None,
        **streams: Any,
    ):
        streams = {"stdin": subprocess.DEVNULL, **streams}
        variables = clean_environment(os.environ)
        self._lifeline: int | None = None
        if not isinstance(program, str):
            super().__init__([*program, *arguments], env={**variables, **(environment or {})}, **streams)
            return
        ending, self._lifeline = os.pipe()  # a pipe: the child notices when the system closes this process's end
        options = {"lifeline": ending, "memory": memory, "cpu_seconds": cpu_seconds, "file_bytes": file_bytes}
        command = [sys.executable, "-P", __file__, json.dumps(options), program, *arguments]
        variables |= {"PYTHONPATH": os.pathsep.join(import_paths()), **(environment or {})}
        try:
            super().__init__(command, env=variables, pass_fds=[ending], **streams)
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(ending)

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait(timeout)
        self._let_go()
        return status

    def __del__(self, *arguments: Any) -> None:
        self._let_go()
        super().__del__(*arguments)

    def _let_go(self) -> None:
        lifeline, self._lifeline = getattr(self, "_lifeline", None), None
        if lifeline is not None:
            os.close(lifeline)


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Select the environment variables that a child may have."""
    return {
        name: value
        for name, value in variables.items()
        if (name in NAMES or name.startswith(PREFIXES)) and not any(word in name.upper() for word in SECRETS)
    }


def import_paths() -> list[str]:
    """Return the folders from which this process imports, except the working directory.

    The folder of this program comes last, because this folder may be the working directory.
    """
    here = os.path.realpath(os.curdir)
    paths = [path for path in sys.path if os.path.isabs(path) and os.path.realpath(path) not in (here, ROOT)]
    return [*dict.fromkeys(paths), ROOT]


def limit_process(memory: int | None, cpu_seconds: int | None, file_bytes: int | None) -> None:
    """Limit the resources that this process may use. With any limit, the process also writes no core file.

    On Apple silicon, macOS reserves about 390 GiB of addresses for each process and rejects a smaller RLIMIT_AS
    (https://github.com/WeblateOrg/weblate/pull/21763). On a Mac, the process therefore measures its resident memory
    itself. If the system rejects one of the other limits, the process continues without this limit.

    Args:
        memory, cpu_seconds, file_bytes: See ``ChildProcess``.
    """
    requested = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_FSIZE: file_bytes}
    limits = {kind: most for kind, most in requested.items() if most is not None}
    if limits:
        limits[resource.RLIMIT_CORE] = 0
        sys.dont_write_bytecode = True  # a limit may cut a .pyc file, which later processes cannot read
    if memory is not None and sys.platform == "darwin":
        del limits[resource.RLIMIT_AS]
        end_above(memory)
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def end_above(memory: int) -> None:
    """Start a thread that ends this process soon after the process has more than ``memory`` bytes of resident memory.

    The thread also writes a message to standard error.
    """
    from ane.system.machine import peak_memory_bytes  # load_program has made this import possible

    def watch() -> None:
        while (peak_memory_bytes() or 0) <= memory:
            time.sleep(WATCH_SECONDS)
        os.write(2, b"it needs more memory than it may use\n")
        os._exit(1)

    threading.Thread(target=watch, name="memory", daemon=True).start()


def end_with_parent(lifeline: int) -> None:
    """Start a thread that ends this process when the parent process closes its end of the pipe ``lifeline``."""

    def watch() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def load_program() -> None:
    """Import the package ``ane`` that contains this file, even if Python would find another package ``ane`` first."""
    package = Path(ROOT) / "ane"
    spec = importlib.util.spec_from_file_location(
        "ane", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["ane"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["ane"])


def main() -> None:
    options, module = json.loads(sys.argv[1]), sys.argv[2]
    end_with_parent(options.pop("lifeline"))
    load_program()
    limit_process(**options)
    sys.argv[1:3] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
