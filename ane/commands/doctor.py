"""Run ``ane doctor``: show what this machine can run, what is missing, and the command that installs it."""

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rich.text import Text

from ane.commands.defaults import apply_defaults, leaves
from ane.commands.messages import counted, output_console
from ane.system import paths
from ane.system.errors import UserError
from ane.system.machine import macos_version, memory_bytes, processor_name, system_version, usable_cores
from ane.system.reports import switch_off_reports
from ane.system.requirements import mac_problem, python_problem
from ane.system.version import version as ane_version

MIN_DISK = 1e9  # minimum free bytes, which are enough for the converted embedded voice
STYLES = {"ok": "green", "missing": "yellow", "broken": "red"}
OPTIONAL = (  # package, extra of tortoise-ane, purpose
    ("onnxruntime", "onnx", "backend onnx"),
    ("coreai-core", "coreai", "backend coreai"),
    ("fastapi", "server", "`ane serve`"),
    ("av", "books", "`ane read` to m4b, mp3 and other formats"),
    ("pocketsphinx", "check", "`ane read --check`"),
    ("ray", "ray", "`ane read --ray`"),
    ("phonemizer", "kitten", "KittenTTS models"),
    ("gguf", "gguf", "`ane convert --to gguf`"),
    ("scikit-learn", "palettes", "6-bit and 4-bit Core ML weights"),
)


@dataclass(frozen=True)
class Finding:
    """One fact about the machine.

    Attributes:
        state: State of the subject: "ok", "missing" if it is optional and not there, or "broken" if it stops `ane say`.
        fix: The command or step that installs or repairs the subject. "" means that there is nothing to do.
    """

    subject: str
    state: str
    detail: str
    fix: str = ""


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "doctor",
        help="show what this machine can run and what is missing",
        description="Show what this machine can run, what is missing, and the command that "
        "installs it. The exit status is 1 only if `ane say` cannot work.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=doctor)


def doctor(args: argparse.Namespace) -> int:
    findings = [finding for check in CHECKS for finding in check()] + check_defaults(args.make_parser)
    broken = any(finding.state == "broken" for finding in findings)
    if args.json:
        print(json.dumps({"works": not broken, "findings": [asdict(finding) for finding in findings]}))
        return int(broken)
    console = output_console()
    for finding in findings:
        line = Text.assemble((f"{finding.state:<8}", STYLES[finding.state]), f"{finding.subject}: {finding.detail}")
        console.print(line.append(f"\n{'':8}  to fix it: {finding.fix}") if finding.fix else line)
    console.print("`ane say` cannot work until the broken parts are fixed." if broken else "`ane say` works here.")
    return int(broken)


def check_machine() -> list[Finding]:
    memory = memory_bytes()
    size = f", {memory / 1e9:.0f} GB of memory" if memory else ""
    findings = [
        Finding("tortoise-ane", "ok", ane_version()),
        Finding("machine", "ok", f"{processor_name()}, {usable_cores()} cores{size}, {system_version()}"),
        Finding("python", "ok", platform.python_version()),
    ]
    for subject, problem in (("machine", mac_problem()), ("python", python_problem())):
        if problem:
            cause, _, fix = problem.partition(": ")
            findings.append(Finding(subject, "broken", cause, fix))
    return findings


def check_torch() -> list[Finding]:
    try:
        import torch

        from ane.backends.torch.device import choose_device, cuda_problem

        device, problem = choose_device("auto"), cuda_problem()
    except (ImportError, OSError) as error:  # OSError: a shared library cannot be loaded
        return [Finding("backend torch", "broken", str(error), "pip install --force-reinstall torch")]
    findings = [Finding("backend torch", "ok", f"torch {torch.__version__} on {device}"), *check_kernels()]
    if problem is not None and problem.unexpected:
        findings.append(Finding("backend torch:cuda", "missing", problem.message, "update the NVIDIA driver"))
    return findings


def check_kernels() -> list[Finding]:
    from ane.backends.torch.kernels import SWITCH, library_problem, supports_cpu

    if not supports_cpu():
        return []
    problem = library_problem()
    if not problem:
        return [Finding("kernels for this CPU", "ok", "in use")]
    fix = f"unset {SWITCH}" if SWITCH in problem else "install g++ 11 or later, then install this package again"
    return [Finding("kernels for this CPU", "missing", problem, fix)]


def check_core_ml() -> list[Finding]:
    from ane.backends import core_ml_runs

    if core_ml_runs():
        return [Finding("backend coreml", "ok", f"macOS {macos_version()}")]
    fix = "update to macOS 15 or later" if sys.platform == "darwin" else "use a Mac; `--backend mil` checks packages"
    return [Finding("backend coreml", "missing", "Core ML runs on macOS 15 and later", fix)]


def check_onnx() -> list[Finding]:
    switch_off_reports()
    try:
        import onnxruntime  # noqa: TID251
    except (ImportError, OSError) as error:
        return [Finding("backend onnx", "missing", str(error), "pip install '.[onnx]', or on an NVIDIA GPU '.[cuda]'")]
    from ane.backends.onnx.providers import DEVICES, installed_versions, load_error

    available = onnxruntime.get_available_providers()
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in available)
    findings = [Finding("backend onnx", "ok", f"{installed_versions(onnxruntime)}, with the providers {names}")]
    for device in (device for device in DEVICES.values() if device.memory == "cuda"):
        if device.provider in available or (device.name == "cuda" and shutil.which("nvidia-smi")):
            reason = load_error(device)
            findings.append(
                Finding(
                    f"backend onnx:{device.name}",
                    "missing" if reason else "ok",
                    reason or "it loads",
                    f"install what it needs: {device.requirements}" if reason else "",
                )
            )
    return findings


def check_mlx() -> list[Finding]:
    if find_spec("mlx") is None:
        return [Finding("backend mlx", "missing", "the package mlx is not installed", "pip install '.[mlx]'")]
    try:
        import mlx.core

        from ane.backends.mlx.owner import device_name
    except (ImportError, OSError) as error:  # the package mlx needs a library for each platform
        return [Finding("backend mlx", "missing", str(error), "pip install --force-reinstall '.[mlx]'")]
    return [Finding("backend mlx", "ok", f"mlx {mlx.core.__version__} on {device_name()}")]


def check_playback() -> list[Finding]:
    from ane.audio import check_sound_device

    try:
        check_sound_device().close()
    except UserError as error:
        cause = str(error).partition("; ")[0]
        return [Finding("playback", "missing", cause, "connect a sound device; `ane say -o FILE` works without one")]
    return [Finding("playback", "ok", "`ane say` without -o plays")]


def check_packages() -> list[Finding]:
    findings = []
    for package, extra, purpose in OPTIONAL:
        try:
            findings.append(Finding(package, "ok", f"{version(package)}, for {purpose}"))
        except PackageNotFoundError:
            findings.append(Finding(package, "missing", f"for {purpose}", f"pip install '.[{extra}]'"))
    return [finding for finding in findings if (finding.subject, finding.state) != ("onnxruntime", "missing")]


def check_folders() -> list[Finding]:
    """Check that the folders can be written. If a folder does not exist yet, check its nearest existing parent."""
    findings = []
    for subject, folder in (("cache folder", paths.cache_dir), ("data folder", paths.data_dir)):
        try:
            path = folder()
            above = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
            writable = above.is_dir() and os.access(above, os.W_OK)
            free = shutil.disk_usage(above).free
        except (OSError, UserError) as error:
            findings.append(Finding(subject, "missing", str(error), "set ANE_HOME to a folder that can be written"))
            continue
        if not writable:
            findings.append(
                Finding(
                    subject,
                    "missing",
                    f"{path} cannot be written, so nothing is kept between runs",
                    "set ANE_HOME to a folder that can be written",
                )
            )
        else:
            state = "ok" if free >= MIN_DISK else "missing"
            findings.append(
                Finding(
                    subject,
                    state,
                    f"{path}, {free / 1e9:.1f} GB free",
                    "" if state == "ok" else "delete files, such as with `ane cache clear`",
                )
            )
    return findings


def check_defaults(make_parser: Callable[[str], argparse.ArgumentParser]) -> list[Finding]:
    """Check the defaults that the user has set for `ane say`, and then the defaults for the other commands.

    Args:
        make_parser: Function that returns the parser of a command, or of all commands for "".
    """
    names = {command: None for command, _ in leaves(make_parser(""))}
    for command, state in (("say", "broken"), ("", "missing")):
        try:
            apply_defaults(make_parser(command), names)
        except UserError as error:
            return [Finding("defaults", state, str(error), "correct the setting, or delete the file")]
    return [Finding("defaults", "ok", str(file))] if os.path.isfile(file := paths.config_file()) else []


def check_bundles() -> list[Finding]:
    from ane.bundles import EMBEDDED, bundle_names, open_model

    findings = []
    for name in bundle_names():
        try:
            model = open_model(name)
        except UserError as error:
            embedded = name in EMBEDDED
            findings.append(
                Finding(
                    f"bundle {name}",
                    "broken" if embedded else "missing",
                    str(error),
                    "pip install --force-reinstall tortoise-ane" if embedded else "import or convert it again",
                )
            )
            continue
        content = [counted(len(model.networks), "network") if model.networks else f"{model.family.title} graph"] + [
            counted(len(packages), f"{kind} package")
            for kind, packages in (("Core ML", model.packages), ("ONNX", model.onnx_packages))
            if packages
        ]
        weights = "" if model.trained else ", random weights: noise, not speech"
        findings.append(Finding(f"bundle {name}", "ok", f"{', '.join(content)}{weights}"))
    return findings


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    check_machine,
    check_torch,
    check_core_ml,
    check_mlx,
    check_onnx,
    check_playback,
    check_packages,
    check_folders,
    check_bundles,
)
