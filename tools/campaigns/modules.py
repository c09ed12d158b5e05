"""Compare the interpreter with torch, on small torch modules that coremltools converts.

Run ``python -m tools.campaigns modules [-o FILE] [--targets iOS18] [--precisions fp32,fp16] [--only NAME]``. Every
module of ``torch_modules`` is converted with fixed lengths, with one flexible axis and with two, and runs with the
lengths of the trace and with others. Modules that the converter refuses are counted separately, because the interpreter
never gets them. For modules of ``MISREAD``, the converter writes another function. If the results differ from torch's,
they must be those of that function.

A run adds to FILE after every target, precision and kind of lengths, so that stopping it loses little.
"""

import argparse
import itertools
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.mil import Interpreter, Package
from ane.system.decibels import snr_db
from tools.campaigns.torch_modules import MISREAD, MODULES

SHAPE = (2, 6, 8)
AXES = {"fixed": (), "one flexible": (1,), "two flexible": (1, 2)}
RANGE = 4, 20  # minimum and maximum length of a flexible axis
OTHER_LENGTHS = 10, 12  # other lengths than the trace's for the axes 1 and 2
DECIBELS = {"fp32": 60, "fp16": 35}  # the interpreter computes a package in fp16 in float32, from fp16 weights
PRECISIONS = {"fp32": "FLOAT32", "fp16": "FLOAT16"}
TARGETS = ("iOS16", "iOS17", "iOS18")
RESULTS = Path(__file__).parent / "results" / "modules.json"


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    made = MODULES[name]()
    if isinstance(made, nn.Module):
        return made.eval()
    module = nn.Module()
    module.forward = made
    return module


def sample(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def results(module: nn.Module, x: Tensor) -> list[np.ndarray]:
    """Run a torch module, and return its outputs as arrays."""
    with torch.no_grad():
        out = module(x)
    return [part.numpy() for part in (tuple(out) if isinstance(out, tuple) else (out,))]


def differs(expected: list[np.ndarray], actual: list[np.ndarray], decibels: float) -> str:
    """Say in words how two lists of outputs differ, or return "" if they are equal."""
    if [one.shape or (1,) for one in expected] != [other.shape or (1,) for other in actual]:
        return f"shapes {[one.shape for one in expected]} and {[other.shape for other in actual]}"
    for one, other in zip(expected, actual, strict=True):
        if not (np.isfinite(one) == np.isfinite(other)).all():
            return "other numbers are infinite or NaN"
        finite = np.isfinite(one)
        if finite.any() and snr_db(one[finite].astype(np.float32), other[finite].astype(np.float32)) < decibels:
            return f"{snr_db(one[finite].astype(np.float32), other[finite].astype(np.float32)):.0f} dB"
    return ""


def first_difference(wanted: list[list[np.ndarray]], found: list[list[np.ndarray]], decibels: float) -> str:
    return next(filter(None, (differs(one, other, decibels) for one, other in zip(wanted, found, strict=True))), "")


def attempt(name: str, target: str, precision: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the outcome and details of every comparison, or nothing if torch cannot compute other lengths.

    The outcomes are "equal", "misread by the converter", "refused by the converter" and "wrong".
    """
    module, axes = module_of(name), AXES[kind]
    reason, written = MISREAD.get(name, ("", None))
    x = sample(SHAPE)
    shape = tuple(ct.RangeDim(*RANGE, default=size) if axis in axes else size for axis, size in enumerate(SHAPE))
    lengths = [SHAPE] + [
        tuple(OTHER_LENGTHS[axis - 1] if axis in axes else size for axis, size in enumerate(SHAPE))
    ] * bool(axes)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, x, check_trace=False)
    try:
        wanted = [results(module, sample(length)) for length in lengths]
    except (RuntimeError, IndexError):
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = ct.convert(
                traced,
                inputs=[ct.TensorType("x", shape)],
                skip_model_load=True,
                minimum_deployment_target=getattr(ct.target, target),
                compute_precision=getattr(ct.precision, PRECISIONS[precision]),
            )
            model.save(f"{folder}/model.mlpackage")
        except Exception as error:  # coremltools raises errors of every class
            first = str(error).partition("\n")[0][:120]
            yield "refused by the converter", f"{type(error).__name__}: {first}"
            return
        try:
            interpreter = Interpreter(Package(Path(folder, "model.mlpackage")))
            found = [list(interpreter.predict({"x": sample(length).numpy()}).values()) for length in lengths]
        except Exception as error:  # an error of any class is a fault of the interpreter
            yield "wrong", f"{type(error).__name__}: {str(error)[:160]}"
            return
    problem = first_difference(wanted, found, DECIBELS[precision])
    if (
        problem
        and written
        and not first_difference([results(written, sample(length)) for length in lengths], found, DECIBELS[precision])
    ):
        yield "misread by the converter", reason
    else:
        yield "wrong" if problem else "equal", problem


def measured(pieces: dict[str, Any]) -> dict[str, Any]:
    """Add up the counts, and compute which share of the written packages gives equal outputs."""
    counts: Counter[str] = Counter()
    for piece in pieces.values():
        counts.update(piece["counts"])
    written = sum(counts.values()) - counts["refused by the converter"]
    return {
        "modules": len(MODULES),
        "counts": dict(counts),
        "share_equal": round(counts["equal"] / max(1, written), 4),
        "wrong": counts["wrong"],
        "pieces": pieces,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.campaigns modules", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", default=RESULTS, help="JSON file (%(default)s)")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of %(default)s")
    parser.add_argument("--precisions", default=",".join(DECIBELS), help="of %(default)s")
    parser.add_argument("--lengths", default=",".join(AXES), help="of %(default)s")
    parser.add_argument("--only", metavar="NAME", help="one module, whose outcomes are printed and not kept")
    args = parser.parse_args(arguments)
    pieces = json.loads(args.output.read_text("utf-8"))["pieces"] if args.output.exists() and not args.only else {}
    for target, precision, kind in itertools.product(
        *(names.split(",") for names in (args.targets, args.precisions, args.lengths))
    ):
        counts: Counter[str] = Counter()
        problems: dict[str, str] = {}
        for name in [args.only] if args.only else MODULES:
            for outcome, details in attempt(name, target, precision, kind):
                counts[outcome] += 1
                if outcome != "equal":
                    problems[name] = f"{outcome}: {details}"
        pieces[f"{target}, {precision}, {kind}"] = {"counts": dict(counts), "problems": problems}
        if not args.only:
            args.output.write_text(json.dumps(measured(pieces), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(measured(pieces), indent=1, ensure_ascii=False) + "\n")
    return 1 if measured(pieces)["wrong"] else 0
