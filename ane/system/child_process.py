"""Start modules of this program in child processes. No other module does so.

The child imports the same modules as this process, whatever the working directory contains. Its environment has no
secrets. It ends when this process does, and it can be variables limits.

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

WATCH_SECONDS = 0.02  # between two measurements of the resident memory
ROOT = str(Path(__file__).resolve().parents[2])
# A child gets these variables. All others, such as tokens and keys, stay in this process
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
    """A running module of this program, or another program.

    Args:
        program: Name of a module, which runs as with ``python -m``, or the words of another program. Such a program
            gets the same environment, but none of the other properties described here.
        arguments: Further words.
        environment: Variables to add.
        memory, cpu_seconds, file_bytes: Limits of the child's use. ``None`` means no limit. On macOS, ``memory`` bounds
            the resident memory, and the child watches it itself.
        streams: ``stdin``, ``stdout``, ``stderr`` and ``text`` of ``subprocess.Popen``. By default, standard input is
            closed, and the other streams are the streams of this process.
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
        ending, self._lifeline = os.pipe()  # closes when this process ends for any reason, which the child notices
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
    """Return the variables that a child may have."""
    return {
        name: value
        for name, value in variables.items()
        if (name in NAMES or name.startswith(PREFIXES)) and not any(word in name.upper() for word in SECRETS)
    }


def import_paths() -> list[str]:
    """Return the folders that this process imports from, without the working directory.

    This program's folder comes last, because it may be the working directory.
    """
    here = os.path.realpath(os.curdir)
    paths = [path for path in sys.path if os.path.isabs(path) and os.path.realpath(path) not in (here, ROOT)]
    return [*dict.fromkeys(paths), ROOT]


def limit_process(memory: int | None, cpu_seconds: int | None, file_bytes: int | None) -> None:
    """Limit the resources that this process may use. With any limit, it leaves no core file.

    Apple Silicon reserves about 390 GiB of addresses for each process, so macOS refuses every smaller RLIMIT_AS
    (https://github.com/WeblateOrg/weblate/pull/21763). There, the process watches its resident memory. If a system
    refuses another limit, the process continues without it.
    """
    requested = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_FSIZE: file_bytes}
    limits = {kind: most for kind, most in requested.items() if most is not None}
    if limits:
        limits[resource.RLIMIT_CORE] = 0
    if memory is not None and sys.platform == "darwin":
        del limits[resource.RLIMIT_AS]
        end_above(memory)
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def end_above(memory: int) -> None:
    """End this process soon after its resident memory exceeds ``memory`` bytes, with a message on standard error."""
    from ane.system.machine import peak_memory_bytes  # importable since load_program ran

    def watch() -> None:
        while (peak_memory_bytes() or 0) <= memory:
            time.sleep(WATCH_SECONDS)
        os.write(2, b"it needs more memory than it may use\n")
        os._exit(1)

    threading.Thread(target=watch, name="memory", daemon=True).start()


def end_with_parent(lifeline: int) -> None:
    """End this process when the other end of the pipe is closed."""

    def watch() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def load_program() -> None:
    """Import the package that this file belongs to, even if another package of that name would be found first."""
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
