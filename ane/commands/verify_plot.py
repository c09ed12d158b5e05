"""The plot of `ane verify --layers`: signal-to-noise ratio along the program of each function."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ane.system.files import replacing

if TYPE_CHECKING:
    from converters.proof.verify import FunctionCheck

HIGHEST = 130           # dB shown: a value above is exact, or nearly


def plot_results(path: Path, results: "Sequence[FunctionCheck]") -> None:
    """Plot one row per function: its values along the program, its operations dotted, its threshold dashed."""
    from matplotlib.figure import Figure

    plotted = [one for one in results if one.values or one.operations]
    figure = Figure(figsize=(11, 0.6 + 2.2 * max(len(plotted), 1)), layout="constrained")
    for number, one in enumerate(plotted):
        axes = figure.add_subplot(len(plotted), 1, number + 1, ylabel="dB", ylim=(-5, HIGHEST))
        axes.set_title(f"{one.package} {one.function}: signal to noise along the program", fontsize="small", loc="left")
        position = {value.name: index for index, value in enumerate(one.operations or one.values)}
        for values, style in ((one.operations, "C0:"), (one.values, "C3.-")):
            inexact = [value for value in values if value.snr < HIGHEST]
            axes.plot([position[value.name] for value in inexact], [value.snr for value in inexact], style, linewidth=1)
        axes.axhline(one.threshold, color="grey", linewidth=0.8, linestyle="--")
    with replacing(path) as temporary:
        figure.savefig(temporary)
