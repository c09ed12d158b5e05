"""What converting to Core ML costs at the official size: time, memory and parity, network by network.

    python -m benchmarks.convert                     random weights of the official sizes: 8 GB of temporary files
    python -m benchmarks.convert --bundle NAME       another model
    python -m benchmarks.convert --stages univnet,clvp
    python -m benchmarks.convert --all-buckets       all default functions (half a day of interpreting on two cores)

Each network is converted by a process of its own, whose peak memory the kernel tells: first its functions are built and
merged into one package, then each is run by the interpreter, in float32 and with fp16 rounding, and held to the torch
network. At last `ane convert` is started over several networks, killed in the middle, and started again.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ane.system.errors import UserError
from benchmarks import report
from benchmarks.memory import run

# One bucket of each kind where more would only repeat it; the functions that the decoder's package is asked for.
BUCKETS = {"prefill": "64", "step": "4352", "condition": "128", "denoise": "576", "sample": "320", "steps": "5",
           "clvp_text": "128"}
LANES = "1,16"
NETWORKS = ("autoregressive", "diffusion", "clvp", "univnet", "hifigan", "conditioning_encoder", "contextual_embedder",
            "rlg_auto", "rlg_diffuser")
RESUMED = "conditioning_encoder,rlg_auto,rlg_diffuser,hifigan"


def main() -> None:
    args = arguments()
    if args.one:
        one(args.bundle, args.one, Path(args.work), args.all_buckets)
        return
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        bundle = args.bundle or official(Path(folder))
        rows = [measure_parity(bundle, network, args.all_buckets) for network in args.stages.split(",")]
        again = resumed(bundle, Path(folder))
    times = {row["network"]: {"build": row["build_seconds"], "measure": row["measure_seconds"]} for row in rows}
    settings = {"model": args.bundle or "official, random", "all_buckets": args.all_buckets}
    report.publish(args.output or report.default_output("convert"), "convert", settings, results_of(rows),
                   [tell(rows, again)],
                   {"": lambda path: report.bars(path, "Conversion to Core ML", "seconds", times)},
                   networks=rows, resumed=again)


def results_of(rows: Sequence[dict]) -> list[dict]:
    """What each network's row shares with those of other benchmarks."""
    return [{"name": row["network"], **report.shared(report.Figures(
        peak_rss_gb=report.Spread.of([row["peak_gb"]]),
        stage_ms={stage: report.Spread.of([1000 * row[f"{stage}_seconds"]]) for stage in ("build", "measure")}))}
        for row in rows]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", help="model to convert (default: random weights of the official sizes)")
    parser.add_argument("--stages", default=",".join(NETWORKS), help="networks, with commas between")
    parser.add_argument("--all-buckets", action="store_true", help="all functions that `ane convert` makes by default")
    parser.add_argument("--output", type=Path, help="JSON file (default: a dated one in benchmarks/results)")
    parser.add_argument("--work", help="folder for temporary files (default: the system's)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def official(folder: Path) -> str:
    """A bundle of random weights of the official sizes."""
    for command in (("benchmarks.checkpoints", str(folder / "checkpoints")),
                    ("ane.cli", "import", str(folder / "checkpoints"), str(folder / "bundle"), "--precision", "fp16")):
        run(sys.executable, "-m", *command)
    subprocess.run(["rm", "-r", str(folder / "checkpoints")], check=True)
    return str(folder / "bundle")


def options_of(all_buckets: bool) -> list[str]:
    if all_buckets:
        return []
    return ["--lanes", LANES, *(part for kind, sizes in BUCKETS.items() for part in ("--buckets", f"{kind}={sizes}"))]


def measure_parity(bundle: str, network: str, all_buckets: bool) -> dict:
    """A network converted by a process of its own."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "benchmarks.convert", "--bundle", bundle, "--one", network, "--work", work]
        done = run(*command, *(["--all-buckets"] if all_buckets else []))
    row = json.loads(done.output.strip().splitlines()[-1])
    return row | {"peak_gb": round(done.peak_gb, 2)}


def one(bundle: str, network: str, work: Path, all_buckets: bool) -> None:
    """Convert one network and print what it took as JSON; in a process of its own."""
    import resource

    from ane.bundles import open_model
    from ane.commands.convert import read_options, register
    from converters.coreml.package import write_package
    from converters.proof.parity import measure_parity as parity_of

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    options, = read_options(parser.parse_args(
        ["convert", bundle, "--to", "coreml", "-o", str(work), *options_of(all_buckets)]))
    model, start = open_model(bundle), time.perf_counter()
    package = write_package(model, network, options, work)
    built = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    functions = parity_of(model, package, work)
    files = [path for path in (work / package.path).rglob("*") if path.is_file()]
    print(json.dumps({
        "network": network, "precision": package.precision, "functions": len(functions),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "build_seconds": round(built - start, 1), "build_peak_gb": round(peak / 1e9, 2),
        "measure_seconds": round(time.perf_counter() - built, 1),
        "parity": {name: function.parity for name, function in functions.items()}}))


def resumed(bundle: str, folder: Path) -> dict:
    """`ane convert` killed when the first of several networks is done, and started again."""
    out = folder / "resumed"
    command = [sys.executable, "-m", "ane.cli", "convert", bundle, "--to", "coreml", "-o", str(out), "--stages",
               RESUMED, *options_of(False)]
    noted = out.with_name("resumed.converting") / "progress.json"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (noted.is_file() and json.loads(noted.read_text())["coreml"]["packages"]):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {package["path"] for package in json.loads(noted.read_text())["coreml"]["packages"]}
    times = {path: os.stat(noted.parent / path).st_mtime_ns for path in before}
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    again = [path for path, made in times.items() if os.stat(out / path).st_mtime_ns != made]
    if again:
        raise UserError(f"{', '.join(again)} was made again after the kill")
    return {"networks": RESUMED.split(","), "done_before_the_kill": sorted(before),
            "seconds_after": round(time.perf_counter() - start, 1)}


def tell(networks: Sequence[dict], after: dict) -> report.Shown:
    def worst(row: dict, figure: str) -> str | None:
        found = [parity[figure] for parity in row["parity"].values() if figure in parity]
        return f"{min(found):.1f}" if found else None

    rows: Sequence[Sequence[object]] = [
        (row["network"], row["precision"], row["functions"], row["megabytes"], row["build_seconds"],
         row["build_peak_gb"], row["measure_seconds"], row["peak_gb"], worst(row, "fp32 maths"),
         worst(row, "fp16 rounding")) for row in networks]
    shown = report.print_table("Conversion to Core ML", (
        "network", "precision", "functions", "MB", "build, s", "its peak, GB", "measure, s", "peak, GB",
        "dB, fp32 maths", "dB, fp16 rounding"), rows)
    print(f"Killed with {len(after['done_before_the_kill'])} of {len(after['networks'])} networks done; the rest took "
          f"{after['seconds_after']} s, and nothing was made twice.")
    return shown


if __name__ == "__main__":
    report.run(main)
