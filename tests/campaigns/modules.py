"""Does the interpreter compute what torch computes, for modules that coremltools converts?

``python -m tests.campaigns modules [-o FILE] [--targets iOS18] [--precisions fp32,fp16] [--only NAME]``. Every module
of ``torch_modules`` is converted with fixed lengths, one flexible axis and two, and is run with the lengths of the
trace and with others. What the converter refuses is counted apart: it never reaches the interpreter.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import coremltools as ct
import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.mil import Interpreter, Package
from ane.system.decibels import snr_db
from tests.campaigns.torch_modules import MODULES

SHAPE = (2, 6, 8)
AXES = {"fixed": (), "one flexible": (1,), "two flexible": (1, 2)}
RANGE = 4, 20                       # of a flexible axis
OTHER_LENGTHS = 10, 12              # of the axes 1 and 2, beside those of the trace
DECIBELS = {"fp32": 60, "fp16": 35}      # the interpreter computes a package in fp16 in float32, from fp16 weights
PRECISIONS = {"fp32": "FLOAT32", "fp16": "FLOAT16"}
TARGETS = ("iOS16", "iOS17", "iOS18")


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
    """What torch returns, each result as an array."""
    with torch.no_grad():
        out = module(x)
    return [part.numpy() for part in (tuple(out) if isinstance(out, tuple) else (out,))]


def differs(expected: list[np.ndarray], actual: list[np.ndarray], decibels: float) -> str:
    """Say how two lists of results differ, or return ""."""
    if [one.shape or (1,) for one in expected] != [other.shape or (1,) for other in actual]:
        return f"shapes {[one.shape for one in expected]} and {[other.shape for other in actual]}"
    for one, other in zip(expected, actual, strict=True):
        if not (np.isfinite(one) == np.isfinite(other)).all():
            return "other numbers are infinite or NaN"
        finite = np.isfinite(one)
        if finite.any() and snr_db(one[finite].astype(np.float32), other[finite].astype(np.float32)) < decibels:
            return f"{snr_db(one[finite].astype(np.float32), other[finite].astype(np.float32)):.0f} dB"
    return ""


def attempts(name: str, target: str, precision: str, kinds: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield axes, outcome ("equal", "refused by the converter", "wrong") and details for each kind of lengths."""
    module = module_of(name)
    x = sample(SHAPE)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, x, check_trace=False)
    for kind, axes in ((kind, AXES[kind]) for kind in kinds):
        shape = tuple(ct.RangeDim(*RANGE, default=size) if axis in axes else size for axis, size in enumerate(SHAPE))
        lengths = [SHAPE] + [tuple(OTHER_LENGTHS[axis - 1] if axis in axes else size
                                   for axis, size in enumerate(SHAPE))] * bool(axes)
        wanted = []
        try:        # what torch itself cannot compute at other lengths is no flexible model
            wanted = [results(module, sample(length)) for length in lengths]
        except (RuntimeError, IndexError):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = ct.convert(traced, inputs=[ct.TensorType("x", shape)], skip_model_load=True,
                                   minimum_deployment_target=getattr(ct.target, target),
                                   compute_precision=getattr(ct.precision, PRECISIONS[precision]))
                model.save(f"{folder}/model.mlpackage")
            except Exception as error:      # coremltools raises every kind of error
                reason = str(error).partition("\n")[0][:120]
                yield kind, "refused by the converter", f"{type(error).__name__}: {reason}"
                continue
            try:
                interpreter = Interpreter(Package(Path(folder, "model.mlpackage")))
                found = [list(interpreter.predict({"x": sample(length).numpy()}).values()) for length in lengths]
            except Exception as error:      # a fault of the interpreter, whatever its kind
                yield kind, "wrong", f"{type(error).__name__}: {str(error)[:160]}"
                continue
        problem = next(filter(None, (differs(one, other, DECIBELS[precision])
                                     for one, other in zip(wanted, found, strict=True))), "")
        yield kind, "wrong" if problem else "equal", problem


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns modules", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON file to write")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of %(default)s")
    parser.add_argument("--precisions", default=",".join(DECIBELS), help="of %(default)s")
    parser.add_argument("--lengths", default=",".join(AXES), help="of %(default)s")
    parser.add_argument("--only", metavar="NAME", help="one module")
    args = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    problems: list[dict[str, str]] = []
    for target in args.targets.split(","):
        for precision in args.precisions.split(","):
            for name in [args.only] if args.only else MODULES:
                for kind, outcome, details in attempts(name, target, precision,
                                                       args.lengths.split(",")):
                    counts[outcome] += 1
                    if outcome == "wrong":
                        sys.stderr.write(f"wrong: {name}, {kind}, {target}, {precision}: {details}\n")
                    if outcome != "equal":
                        problems.append({"module": name, "lengths": kind, "target": target, "precision": precision,
                                         "outcome": outcome, "details": details})
    report = json.dumps({"modules": len(MODULES), "counts": dict(counts), "problems": problems}, indent=1)
    if args.output:
        args.output.write_text(report + "\n", encoding="utf-8")
    sys.stdout.write(report + "\n")
    return 1 if counts["wrong"] else 0
