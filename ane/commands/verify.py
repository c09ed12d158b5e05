"""``ane verify``: the packages of a bundle against its networks on torch, stage by stage, value by value."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.backends import NAMES
from ane.commands.packages import with_packages
from ane.system.errors import UserError

if TYPE_CHECKING:       # torch comes in with the handler, so that --help is quick
    from ane.bundles.bundle import Bundle
    from converters.proof.activations import Value
    from converters.proof.onnx_verify import OnnxSubject
    from converters.proof.verify import Checked, Subject

SUBJECTS = ("mil", "mil:fp16", "coreml")
ONNX_SUBJECTS = tuple(name for name in NAMES if name.startswith("onnx"))
UNITS = ("ALL", "CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE")
DEAREST = 12            # operations shown of those that lose most
HIGHEST = 130           # dB drawn: what is above is exact, or nearly
DESCRIPTION = """
Hold the Core ML or ONNX packages of a bundle to its networks on float32 torch. Each function is driven through its
stage as in `ane convert`; --layers then looks inside: at every value that stands for a module of the network, and, with
mil:fp16 and coreml, at what each operation loses against the same program in float32. Exits with status 1 when a
function is below what is asked of it.
"""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add ``verify``; it sets ``handler``, which takes the arguments and returns an exit status."""
    parser = subparsers.add_parser("verify", help="hold packages to the networks on torch",
                                   description=DESCRIPTION)
    parser.add_argument("--bundle", metavar="NAME|PATH", help="bundle with packages (default: the embedded demo)")
    parser.add_argument("--network", metavar="N", help="only this network's packages, such as diffusion")
    parser.add_argument("--function", metavar="NAME", help="only this function, such as step_16_4352")
    parser.add_argument("--against", choices=(*SUBJECTS, *ONNX_SUBJECTS), default="mil",
                        help="what runs the packages: the interpreter in float32 (mil, the default), with the rounding "
                             "of fp16 (mil:fp16), Core ML (coreml, on a Mac), or ONNX Runtime for a bundle's ONNX "
                             "packages (onnx, onnx:cuda and so on)")
    parser.add_argument("--narrow-norms", action="store_true",
                        help="with mil:fp16: norms and softmax round inside too, as the worst engine could")
    parser.add_argument("--compute-units", choices=UNITS, metavar="UNITS",
                        help=f"with coreml: where it may run: {', '.join(UNITS)} (default: what the bundle says)")
    parser.add_argument("--layers", action="store_true", help="look inside the functions")
    parser.add_argument("--json", metavar="FILE", help="write all of it to FILE as JSON; to standard output if -")
    parser.add_argument("--plot", metavar="FILE.png", type=Path,
                        help="draw the ratio along the program of each function; with --layers")
    parser.add_argument("--force", action="store_true",
                        help="convert Core ML packages anew that are damaged or fall short, from the bundle's own "
                             "weights")
    parser.set_defaults(handler=verify_command)


def verify_command(args: argparse.Namespace) -> int:
    """Verify, show, write. UserError when anything falls short, after all of it is shown."""
    from ane.system.files import check_output_file
    from converters.proof.verify import choose, subject

    if args.plot:
        if not args.layers:
            raise UserError("--plot draws what --layers finds: add --layers")
        _drawing()
        check_output_file(args.plot)
    if args.json and args.json != "-":
        check_output_file(Path(args.json))
    console = Console(markup=False, highlight=False, soft_wrap=True, stderr=args.json == "-")
    model = _opened(args, console)
    onnx = args.against in ONNX_SUBJECTS
    choose(model, args.network, args.function, "onnx" if onnx else "coreml")
    runs = _onnx_subject(args, console) if onnx else subject(args.against, args.narrow_norms, args.compute_units)
    model, results = (_verified_onnx if onnx else _verified)(model, runs, args, console)
    if args.json:
        _write(args.json, _json(model, runs, results))
    if args.plot:
        _plot(args.plot, results)
    if args.json != "-":
        _print(console, results, runs, args.layers)
    _judge(results, "" if args.force or onnx else "; --force converts such packages anew")
    return 0


def _opened(args: argparse.Namespace, console: Console) -> "Bundle":
    """A bundle by name or path. The embedded one has its Core ML packages in a copy, made when first asked for."""
    from ane.bundles.opening import demo_bundle, find_bundle, open_model
    from converters.proof.verify import ToVerify

    found = find_bundle(args.bundle)
    if found == demo_bundle() and args.against in SUBJECTS:
        found = with_packages(open_model(args.bundle), "mil", console).path
    return ToVerify(found)


def _verified(model: "Bundle", runs: "Subject", args: argparse.Namespace,
              console: Console) -> "tuple[Bundle, list[Checked]]":
    """What was found; with --force, of the bundle as it is after packages that fell short were made again."""
    from converters.coreml.rebuild import rebuild
    from converters.proof.verify import ToVerify, choose, verify

    with console.status("verifying") as status:
        results = verify(model, choose(model, args.network, args.function), runs, args.layers, status.update)
        short = {result.package for result in results if not result.fine}
        if short and args.force:
            rebuild(model, [package for package in model.packages if Path(package.path).stem in short], status.update)
            model = ToVerify(model.path)
            again = [(package, [name for name in names if name in package.functions])
                     for package, names in choose(model, args.network, args.function)
                     if Path(package.path).stem in short]
            found = {(one.package, one.function): one
                     for one in verify(model, again, runs, args.layers, status.update)}
            results = [found.get((one.package, one.function), one) for one in results]
    if short and args.force:
        console.print(f"Converted anew: {', '.join(sorted(short))}")
    return model, results


def _onnx_subject(args: argparse.Namespace, console: Console) -> "OnnxSubject":
    """Raises UserError for flags that it does not have, and for a provider that does not load."""
    from ane.backends.onnx.providers import choose
    from converters.proof.onnx_verify import OnnxSubject

    for flag, given in (("--narrow-norms", args.narrow_norms), ("--compute-units", args.compute_units),
                        ("--force", args.force)):
        if given:
            raise UserError(f"{flag} has no effect on --against {args.against}: it is for Core ML packages")
    return OnnxSubject(choose(args.against.removeprefix("onnx").removeprefix(":"), console.print))


def _verified_onnx(model: "Bundle", runs: "OnnxSubject", args: argparse.Namespace,
                   console: Console) -> "tuple[Bundle, list[Checked]]":
    from converters.proof.onnx_verify import verify
    from converters.proof.verify import choose

    with console.status("verifying") as status:
        return model, verify(model, choose(model, args.network, args.function, "onnx"), runs, args.layers,
                             status.update)


def _judge(results: "Sequence[Checked]", advice: str) -> None:
    """Raise UserError with the first function that falls short, and how many do."""
    short = [result for result in results if not result.fine]
    if not short:
        return
    first = short[0]
    if first.snr is None:
        said = first.problem
    else:
        where = f", drifting from {first.drift.module or first.drift.name} on" if first.drift else ""
        said = f"{first.snr} dB, and at least {first.needed:g} are asked for{where}"
    counted = f"{len(short)} of {len(results)} functions fall short" if len(results) > 1 else "it falls short"
    raise UserError(f"{counted}: {first.package}, {first.function}: {said}{advice}")


# What is shown

def _print(console: Console, results: "Sequence[Checked]", runs: "Subject", layers: bool) -> None:
    console.print(_stage_table(results, runs))
    if not layers:
        return
    if len(results) == 1:
        console.print(_value_table(results[0]))
        if results[0].operations:
            console.print(_operation_table(results[0]))
    else:
        console.print(_inside_table(results))
        console.print("For every value of a function, name it with --function, or see --json.")
    if not all(one.values for one in results):
        console.print("There is no looking into a function that fails, nor into one with a state on Core ML.")


def _stage_table(results: "Sequence[Checked]", runs: "Subject") -> Table:
    table = _table(f"On {runs.name}, against float32 torch", "package", "function", "dB", "asked for", "largest error",
                   "", numbers=(2, 3, 4))
    for one in results:
        said = one.problem or ("holds" if one.fine else "falls short")
        table.add_row(one.package, one.function, _dB(one.snr), f"{one.needed:.1f}", _number(one.error), said,
                      style="red" if not one.fine else "yellow" if one.problem else None)
    return table


def _inside_table(results: "Sequence[Checked]") -> Table:
    table = _table("Inside", "package", "function", "values", "worst", "dB", "first that drifts", "dB",
                   "operation that loses most", "dB lost", numbers=(2, 4, 6, 8))
    for one in results:
        dearest = _dearest(one.operations)[:1]
        cells = [_named(one.worst), _dB(one.worst and one.worst.snr), _named(one.drift) if one.drift else "none",
                 _dB(one.drift and one.drift.snr)]
        table.add_row(one.package, one.function, str(len(one.values)), *cells,
                      *(f"{value.op} {value.name}" for value in dearest), *(_dB(value.lost) for value in dearest),
                      style="red" if one.drift else None)
    return table


def _value_table(one: "Checked") -> Table:
    """Values with the twin's modules, in program order."""
    table = _table(f"{one.function}: values against the modules they stand for", "module", "operation", "dB", "times",
                   "largest error", "", numbers=(2, 3, 4))
    for value in one.values:
        remarks = {"drifts first": value is one.drift, "worst": value is one.worst}
        table.add_row(_named(value), value.op, _dB(value.snr), f"{value.factor:g}", _number(value.error),
                      ", ".join(remark for remark, true in remarks.items() if true),
                      style="red" if value is one.drift else "yellow" if value is one.worst else None)
    return table


def _operation_table(one: "Checked") -> Table:
    table = _table(f"{one.function}: operations that lose most against float32", "value", "operation", "dB", "dB lost",
                   numbers=(2, 3))
    for value in _dearest(one.operations)[:DEAREST]:
        table.add_row(value.name, value.op, _dB(value.snr), _dB(value.lost))
    return table


def _dearest(operations: "Sequence[Value]") -> "list[Value]":
    return sorted(operations, key=lambda value: -(value.lost or 0))


def _named(value: "Value | None") -> str:
    return "–" if value is None else value.module or value.name


def _dB(value: float | None) -> str:        # noqa: N802  the unit's name
    return "–" if value is None else f"{value:.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _table(title: str, *columns: str, numbers: Sequence[int] = ()) -> Table:
    """Nothing is cut off, however narrow the terminal."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if number in numbers else "left")
    return table


# What is written

def _json(model: "Bundle", runs: "Subject", results: "Sequence[Checked]") -> dict[str, Any]:
    functions = [asdict(one) | {"needed": one.needed, "fine": one.fine, "drift": one.drift and one.drift.name,
                                "worst": one.worst and one.worst.name} for one in results]
    return {"bundle": str(model.path), "against": runs.name, "functions": _finite(functions)}


def _finite(found: Any) -> Any:
    """JSON has no infinities: they become null."""
    if isinstance(found, dict):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _write(file: str, report: dict[str, Any]) -> None:
    from ane.system.files import replacing

    if file == "-":
        print(json.dumps(report))
        return
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _drawing() -> type:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot needs matplotlib: pip install 'tortoise-ane[plots]'") from None
    return Figure


def _plot(path: Path, results: "Sequence[Checked]") -> None:
    """A row a function: its values along the program, its operations dotted behind them, its bar dashed."""
    from ane.system.files import replacing

    drawn = [one for one in results if one.values or one.operations]
    figure = _drawing()(figsize=(11, 0.6 + 2.2 * max(len(drawn), 1)), layout="constrained")
    for number, one in enumerate(drawn):
        axes = figure.add_subplot(len(drawn), 1, number + 1, ylabel="dB", ylim=(-5, HIGHEST))
        axes.set_title(f"{one.package} {one.function}: signal to noise along the program", fontsize="small", loc="left")
        place = {value.name: index for index, value in enumerate(one.operations or one.values)}
        for values, style in ((one.operations, "C0:"), (one.values, "C3.-")):
            inexact = [value for value in values if value.snr < HIGHEST]
            axes.plot([place[value.name] for value in inexact], [value.snr for value in inexact], style, linewidth=1)
        axes.axhline(one.bar, color="grey", linewidth=0.8, linestyle="--")
    with replacing(path) as temporary:
        try:
            figure.savefig(temporary)
        except ValueError as error:
            raise UserError(f"--plot {path}: {error}") from error
