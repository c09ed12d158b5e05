"""Call Core ML through coremltools, identify this Mac, and explain Core ML's errors.

All code that needs macOS is in this module.
"""

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ane.system.errors import UserError
from ane.system.machine import macos_at_least, macos_version

OLDEST_MACOS = 15  # the first macOS whose Core ML supports packages with several functions and states
# version of macOS whose Core ML is reported to crash programs → when it crashes them, and the remedy
# (crashes are in libBNNS for 26.4 and 26.5, and in MPSGraph within an hour of speech for 27)
CRASHING_MACOS = {
    "26.4": "on any compute units: update macOS, or use backend=torch",
    "26.5": "on any compute units: update macOS, or use backend=torch",
    "27": "if they speak for long on the GPU: speech uses it only if compute_units includes it",
}
BUFFER_SECONDS = 10.0  # how long to hold an array after a prediction, because Core ML still uses the array for 1 s

NO_MEMORY = "there is not enough memory"
# text in a Core ML error → meaning of this error for the user
ERROR_MEANINGS = {
    "ANECCompile": "the Neural Engine's compiler rejects it",
    "ANECF": "the Neural Engine's compiler rejects it",
    "MILCompilerForANE": "the Neural Engine's compiler rejects it",
    "std::bad_cast": "Core ML has an internal error on these compute units (std::bad_cast)",
    "error code: -14": "these compute units cannot run it (error code -14)",
    "MLIR pass manager failed": "the GPU's compiler rejects it",
    "Error in building plan": "Core ML finds no way to run it on these compute units",
    "Failed to build the model execution plan": "Core ML finds no way to run it on these compute units",
    "nsufficient memory": NO_MEMORY,
    "out of memory": NO_MEMORY,
    "MemoryError": NO_MEMORY,
}

LOGGER = logging.getLogger(__name__)


class MacMachine(NamedTuple):
    """The Mac for which Core ML compiles a model: its chip ("Apple M2 Pro") and its build of macOS ("24F74")."""

    chip: str
    os_build: str


def this_machine() -> MacMachine:
    """Return the chip and the build of macOS of this Mac. Raises UserError if macOS does not report them."""
    return MacMachine(
        command_output("sysctl", "-n", "machdep.cpu.brand_string"), command_output("sw_vers", "-buildVersion")
    )


def command_output(*command: str) -> str:
    """Run a macOS command and return its output. Raises UserError if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"cannot run {command[0]} to identify this Mac: {error}") from error


def crash_advice(version: str) -> str | None:
    """Return what ``CRASHING_MACOS`` says about a version of macOS, or ``None`` if it does not list the version."""
    return next((advice for known, advice in CRASHING_MACOS.items() if f"{version}.".startswith(f"{known}.")), None)


class CoreMLTools:
    """Access to Core ML through coremltools.

    ``compile`` and ``open`` raise RuntimeError if Core ML fails.

    Attributes:
        gpu_crashes: Whether users report that Core ML on the GPU crashes programs on this version of macOS.

    Raises:
        UserError: This machine does not run macOS, or its macOS is older than 15.
    """

    def __init__(self) -> None:
        if sys.platform != "darwin":
            raise UserError("Core ML runs on macOS only: use backend=mil to interpret the packages, or backend=torch")
        version = macos_version()
        if not macos_at_least(OLDEST_MACOS):
            raise UserError(
                f"this Mac has macOS {version}, and the Core ML packages need macOS {OLDEST_MACOS} or newer: "
                "update it, or use backend=torch"
            )
        advice = crash_advice(version)
        self.gpu_crashes: bool = advice is not None
        if advice:
            LOGGER.info("Core ML is reported to crash programs on macOS %s %s", version, advice)

    def machine(self) -> MacMachine:
        return this_machine()

    def compile(self, package: Path, destination: Path) -> None:
        """Compile a .mlpackage to ``destination``. This path must end in .mlmodelc, and must not exist yet."""
        from coremltools.models.utils import compile_model

        compile_model(str(package), str(destination))

    def open(self, compiled: Path, function: str, compute_units: str) -> Any:
        """Load a function of a compiled model.

        Args:
            compiled: Path of the compiled model.
            function: Name of the function. "" means the only function of the model.
            compute_units: One of ``COMPUTE_UNITS``.

        Returns:
            A ``CompiledMLModel`` from coremltools, or in tests an object with its methods ``predict`` and
            ``make_state``.
        """
        logging.getLogger("coremltools").setLevel(logging.ERROR)  # warns about every torch newer than 2.7
        import coremltools

        return coremltools.models.CompiledMLModel(
            str(compiled), compute_units=coremltools.ComputeUnit[compute_units], function_name=function
        )


def keep_arrays(arrays: object) -> None:
    """Hold a reference to arrays that Core ML may still read, for ``BUFFER_SECONDS``."""
    timer = threading.Timer(BUFFER_SECONDS, lambda held: None, [arrays])
    timer.daemon = True
    timer.start()


def error_summary(error: Exception, limit: int = 200) -> str:
    """Explain a Core ML error. If ``ERROR_MEANINGS`` has no explanation, return the error's message in one line.

    Core ML prints the userInfo dictionary of an NSError. In the dictionary, the line NSLocalizedDescription = "…"; has
    the message in quotes. The function returns at most ``limit`` characters of the message.
    """
    text = f"{type(error).__name__}: {error}"
    for part, meaning in ERROR_MEANINGS.items():
        if part in text:
            return meaning
    text = str(error)
    _, description, rest = text.partition('NSLocalizedDescription = "')
    text = " ".join((rest.partition('";')[0] if description else text).split()).rstrip(".;")
    return (text if len(text) <= limit else text[: limit - 1] + "…") or type(error).__name__
