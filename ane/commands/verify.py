"""Define `ane verify`: its flags, and which of its two tasks they select.

If you give --package, the command runs one package of any origin (``verify_package``). Without this flag, the command
compares the packages of a bundle with the PyTorch networks (``verify_bundle``).
"""

import argparse

from ane.bundles.package_records import COMPUTE_UNITS
from ane.commands import arguments
from ane.commands.file_flags import check_files
from ane.commands.verify_bundle import CORE_ML_RUNNERS, ONNX_RUNNERS, verify_bundle
from ane.commands.verify_package import verify_package
from ane.system.errors import NoEffectError, UserError
from ane.system.files import check_output_file

BUNDLE_FLAGS = ("bundle", "networks", "tolerance", "show", "dump")
PACKAGE_FLAGS = ("inputs", "expect", "threshold", "output")
DESCRIPTION = """
Compare the Core ML or ONNX packages of a bundle with its networks on float32 torch. Each function gets the same inputs
as in `ane convert`. The exit status is 1 if a function is below its threshold.

--layers also compares every value that a module of the network returns, and names the first value that drifts. It
converts each function of a Core ML package again, and names the first operation that differs. With --against coreml it
searches only functions that fail, and compares them with the interpreter, because looking inside compiles models.

With --package it runs a function of any Core ML package on the arrays of --inputs, on any machine. The package may come
from another program.
"""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "verify", help="compare packages with the PyTorch reference", description=DESCRIPTION
    )
    parser.add_argument("--bundle", metavar="NAME|PATH", help="bundle to verify (default: the embedded demo)")
    parser.add_argument(
        "--package",
        metavar="FILE.mlpackage",
        type=arguments.path,
        help="package of any model, to run on --inputs instead of verifying a bundle",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.npz",
        type=arguments.path,
        nargs="+",
        help="with --package: file with the inputs by name. Several files mean successive calls on one state",
    )
    parser.add_argument(
        "--expect",
        metavar="FILE.npz",
        type=arguments.path,
        help="with --package: file with the expected outputs of the last call. With --layers it may also have values "
        "inside the function, by name",
    )
    parser.add_argument(
        "--threshold", metavar="DB", type=float, help="with --expect: dB that every array must reach (default: 40)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE.npz",
        type=arguments.path,
        help="with --package: file to write with the outputs and states after the last call",
    )
    parser.add_argument(
        "--networks",
        type=arguments.comma_separated,
        metavar="NETWORK,…",
        help="verify only the packages of these networks, such as diffusion",
    )
    parser.add_argument("--function", metavar="NAME", help="verify only this function, such as step_16_4928")
    parser.add_argument(
        "--against",
        choices=(*CORE_ML_RUNNERS, *ONNX_RUNNERS),
        default="mil",
        help="engine that runs the packages. mil: the interpreter in float32 (default). mil:fp16: the interpreter with "
        "rounding to fp16. mil:flush: the same, and numbers below 6e-5 become 0, as on an M1. coreml: Core ML on a "
        "Mac. coreai: Apple's Core AI. onnx, onnx:cuda and so on: ONNX Runtime, for ONNX packages",
    )
    parser.add_argument(
        "--compute-units",
        choices=COMPUTE_UNITS,
        metavar="UNITS",
        help=f"with coreml: processors that run the functions, from {', '.join(COMPUTE_UNITS)} (the bundle's choice)",
    )
    parser.add_argument("--layers", action="store_true", help="compare the values inside functions too")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="with --layers: largest absolute error of an element that is not counted (default: 1e-4)",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="with --layers: for each value, print consecutive elements, beginning with the element of the largest "
        "error. Line 1 is from PyTorch, line 2 from the package, and line 3 is the difference",
    )
    parser.add_argument(
        "--dump",
        metavar="FILE.npz",
        type=arguments.path,
        help="with --layers: file to write with both sides of every value",
    )
    parser.add_argument("--json", metavar="FILE", help="JSON file to write with the results. '-' is standard output")
    parser.set_defaults(handler=verify_command)


def verify_command(args: argparse.Namespace) -> int:
    """Run `ane verify`: verify a bundle or run a package, and print a report.

    Then raise UserError if a function failed.
    """
    for flag in BUNDLE_FLAGS if args.package else PACKAGE_FLAGS:
        if getattr(args, flag):
            raise NoEffectError(flag, f"{'with' if args.package else 'without'} --package", partners=("package",))
    for flag in ("tolerance", "show", "dump"):
        if getattr(args, flag) and not args.layers:
            raise NoEffectError(flag, "without --layers")
    if args.tolerance is not None and not args.tolerance >= 0:
        raise UserError(f"--tolerance must be at least 0, got {args.tolerance:g}")
    check_files(
        args,
        {"output": args.output, "json": args.json, "dump": args.dump},
        ("package", "inputs", "expect"),
        models=("bundle",),
    )
    for flag in ("output", "dump"):
        if file := getattr(args, flag):
            if file.suffix != ".npz":
                raise UserError(f"--{flag} {file}: the file must end in .npz")
            check_output_file(file)
    if args.json:
        check_output_file(args.json, streams=True)
    return verify_package(args) if args.package else verify_bundle(args)
