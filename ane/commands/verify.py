"""``ane verify``: compare a bundle's packages with its networks on torch, function by function, value by value; or run
one package of any kind."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from ane.backends import NAMES
from ane.bundles.packages import COMPUTE_UNITS
from ane.commands import arguments
from ane.commands.messages import message_console, output_console, status_display
from ane.commands.packages import with_packages
from ane.commands.verify_report import print_results, print_run, results_json, run_json
from ane.system.errors import UserError
from ane.system.files import check_output_file, replacing, write_json

if TYPE_CHECKING:       # torch is imported in the handler, so that --help is quick
    from ane.bundles.bundle import Bundle
    from converters.proof.package_run import PackageRun
    from converters.proof.verify import FunctionCheck

CORE_ML_RUNNERS = ("mil", "mil:fp16", "mil:flush", "coreml", "coreai")
BUNDLE_FLAGS, PACKAGE_FLAGS = ("bundle", "networks"), ("inputs", "expect", "threshold", "output")
ONNX_RUNNERS = tuple(name for name in NAMES if name.startswith("onnx"))
DESCRIPTION = """
Compare the Core ML or ONNX packages of a bundle with its networks on float32 torch. Each function gets the same inputs
as in `ane convert`. --layers compares every value of a Core ML package that a module of the network returns, too. It
also converts each function again and names the first operation that differs. On coreml, where looking inside compiles
models, only functions that fail are searched for it, against the interpreter. The exit status is 1 when a function is
below its threshold.

With --package it runs a function of any Core ML package, also one that this program did not write, on the arrays of
--inputs, on any machine.
"""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("verify", help="compare packages with the PyTorch reference",
                                   description=DESCRIPTION)
    parser.add_argument("--bundle", metavar="NAME|PATH", help="bundle with packages (default: the embedded demo)")
    parser.add_argument("--package", metavar="FILE.mlpackage", type=arguments.path,
                        help="run this package, of any model, on --inputs instead of verifying a bundle")
    parser.add_argument("--inputs", metavar="FILE.npz", type=arguments.path, nargs="+",
                        help="with --package: the inputs by name; several files are calls in turn on one state")
    parser.add_argument("--expect", metavar="FILE.npz", type=arguments.path,
                        help="with --package: compare the last call with these arrays; with --layers also by names of "
                             "values inside")
    parser.add_argument("--threshold", metavar="DB", type=float,
                        help="with --expect: dB that each array must reach (default: 40)")
    parser.add_argument("--output", metavar="FILE.npz", type=arguments.path,
                        help="with --package: write the outputs and states after the last call to FILE")
    parser.add_argument("--networks", type=arguments.comma_separated, metavar="NETWORK,…",
                        help="only the packages of these networks, such as diffusion")
    parser.add_argument("--function", metavar="NAME", help="only this function, such as step_16_4928")
    parser.add_argument("--against", choices=(*CORE_ML_RUNNERS, *ONNX_RUNNERS), default="mil",
                        help="what runs the packages: the interpreter in float32 (mil, the default), with the rounding "
                             "of fp16 (mil:fp16), also with numbers below 6e-5 as 0, as on an M1 (mil:flush), Core ML "
                             "(coreml, on a Mac), Apple's Core AI (coreai), or "
                             "ONNX Runtime for a bundle's ONNX packages (onnx, onnx:cuda "
                             "and so on)")
    parser.add_argument("--compute-units", choices=COMPUTE_UNITS, metavar="UNITS",
                        help=f"with coreml: where it may run: {', '.join(COMPUTE_UNITS)} (default: what the bundle "
                             "states)")
    parser.add_argument("--layers", action="store_true", help="compare the values inside the functions too")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE as JSON; - is standard output")
    parser.set_defaults(handler=verify_command)


def verify_command(args: argparse.Namespace) -> int:
    """Verify, print, write. Raises UserError when a function fails, after everything is printed."""
    for flag in BUNDLE_FLAGS if args.package else PACKAGE_FLAGS:
        if getattr(args, flag):
            raise UserError(f"--{flag} has no effect {'with' if args.package else 'without'} --package")
    if args.layers and args.against in ONNX_RUNNERS:
        raise UserError(f"--layers has no effect with --against {args.against}: it looks inside Core ML packages")
    if args.output:
        if args.output.suffix != ".npz":
            raise UserError(f"--output {args.output}: the file must end in .npz")
        check_output_file(args.output)
    if args.json:
        check_output_file(args.json)
    return verify_package(args) if args.package else verify_bundle(args)


def verify_bundle(args: argparse.Namespace) -> int:
    from converters.proof.verify import choose_packages, runner_named, verify

    runner = runner_named(args.against, args.compute_units)
    console = message_console(args)
    model = open_bundle(args, console)
    chosen = choose_packages(model, args.networks, args.function, "onnx" if args.against in ONNX_RUNNERS else "coreml")
    with status_display(console, "verifying") as show:
        results = verify(model, chosen, runner, args.layers, show)
    if args.json:
        write_json(args.json, results_json(model, runner, results))
    if args.json != "-":
        print_results(output_console(), results, runner, args.layers)
    raise_failures(results)
    return 0


def open_bundle(args: argparse.Namespace, console: Console) -> "Bundle":
    """A bundle by name or path. The Core ML packages of the embedded one are in its cached copy."""
    from ane.bundles.opening import DEMO, find_bundle, is_embedded, open_model
    from converters.proof.verify import UnverifiedBundle

    found = find_bundle(args.bundle or DEMO)
    if is_embedded(found) and args.against in CORE_ML_RUNNERS:
        found = with_packages(open_model(args.bundle or DEMO), "mil", console).path
    return UnverifiedBundle(found)


def raise_failures(results: "Sequence[FunctionCheck]") -> None:
    """Raise UserError with the first function that failed and the number of them."""
    failed = [result for result in results if not result.passed]
    if not failed:
        return
    first = failed[0]
    if first.snr is None:
        problem = first.problem
    else:
        value, cause = first.difference or first.drift, ""
        if value:
            cause = f", from the operation {value.op} {value.name} on" if first.difference else \
                f", drifting from {value.module or value.name} on"
        problem = f"{first.snr} dB, below the threshold of {first.required:g}{cause}"
    count = f"{len(failed)} of {len(results)} functions failed" if len(results) > 1 else "it failed"
    raise UserError(f"{count}: {first.package}, {first.function}: {problem}")


# One package

def verify_package(args: argparse.Namespace) -> int:
    """Run a function on the arrays of files. Raises UserError when an output is below the threshold, at the end."""
    import numpy as np

    from converters.proof.package_run import THRESHOLD, read_arrays, run_package
    from converters.proof.verify import runner_named

    if args.against in ONNX_RUNNERS:
        raise UserError(f"--against {args.against} runs ONNX packages, and --package is a Core ML package")
    if not args.inputs:
        raise UserError(f"--package needs --inputs FILE.npz: {signature(args)}")
    if args.threshold is not None and not args.expect:
        raise UserError("--threshold has no effect without --expect")
    expected = read_arrays(args.expect) if args.expect else {}
    calls = [read_arrays(path) for path in args.inputs]
    runner = runner_named(args.against, args.compute_units)
    run = run_package(args.package, args.function, runner, calls, expected, args.layers)
    if args.output:
        with replacing(args.output) as temporary, temporary.open("wb") as file:
            np.savez(file, **run.outputs)
    if args.json:
        write_json(args.json, run_json(args.package, run, runner.name))
    if args.json != "-":
        print_run(output_console(), run, runner.name)
    check_threshold(run, THRESHOLD if args.threshold is None else args.threshold)
    return 0


def signature(args: argparse.Namespace) -> str:
    """What the function takes and returns, for the message that inputs are missing."""
    from ane.backends.mil.package import Package

    function = Package(args.package).function(args.function)
    parts = (("takes", function.inputs), ("has the state", function.states), ("returns", function.outputs))
    return f"function {function.name!r} " + "; ".join(
        f"{verb} " + ", ".join(f"{name} {type}" for name, type in types.items()) for verb, types in parts if types)


def check_threshold(run: "PackageRun", threshold: float) -> None:
    """Raise UserError that names the first value below the threshold, in program order."""
    compared = {value.name: value.compared for value in (*run.layers, *run.values)}     # an output is also inside
    values = [value for value in compared.values() if value]
    below = [value for value in values if value.snr < threshold]
    if below:
        first = below[0]
        name = f"{first.op} {first.name}" if first.op else first.name
        raise UserError(f"{len(below)} of {len(values)} values are below {threshold:g} dB; the first is {name}: "
                        f"{first.snr:.1f} dB, largest error {first.error:.1e}")
