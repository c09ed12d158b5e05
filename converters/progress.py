"""Report how far a conversion is, and estimate the time and the memory that it needs."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ane.bundles import Bundle
from ane.bundles.weights import layout
from converters.coreml.coreml_package import load_reference
from converters.function_table import coreml_graphs, functions_of

ACTIVITIES = "building", "measuring"  # first words of the activities. A conversion builds and measures every function
KEEPING = "keeping"  # first word about a function that an interrupted run has built
# The peak memory of a Core ML conversion is about BASE bytes, plus PER_BYTE bytes for each byte of the largest network
# in float32. The two numbers are fitted to measurements of the official networks, and differ from these by at most 0.9
# GB. In benchmarks/results, 2026-11-23-decoder-official.json measures 7.5 GB for the decoder with 24 functions.
# 2026-11-21-convert-amd-epyc.json measures 5.4 GB for the denoiser, 5.2 GB for CLVP and 2.8 GB for HiFi-GAN.
BASE, PER_BYTE = 2e9, 3.6
SHARE = 0.75  # a conversion that needs more than this share of the machine's memory is likely to swap


def weights_of(model: Bundle, network: str) -> int:
    """Return the number of values in a network's weights."""
    return sum(map(math.prod, layout(model.family.networks[network], model.config(network)).shapes.values()))


def memory_needed(model: Bundle, network: str) -> float:
    """Estimate the peak memory of a network's conversion to Core ML, in bytes (see ``BASE``)."""
    return BASE + PER_BYTE * 4 * weights_of(model, network)


def memory_warning(model: Bundle, networks: Sequence[str], memory: int | None) -> str:
    """Return a warning, with advice, if the conversion will probably need more memory than this machine has.

    Otherwise, return "".

    Args:
        model: The bundle to convert.
        networks: Names of the networks to convert.
        memory: Bytes of this machine's memory. ``None`` means that the number is unknown.
    """
    needed = {network: memory_needed(model, network) for network in networks}
    worst = max(networks, key=needed.__getitem__)
    if memory is None or needed[worst] <= SHARE * memory:
        return ""
    fitting = ",".join(network for network in networks if needed[network] <= SHARE * memory)
    instead = f", convert only the other networks (--networks {fitting})" if fitting else ""
    return (
        f"converting {worst} takes about {needed[worst] / 1e9:.1f} GB of memory (an estimate: {BASE / 1e9:.0f} GB "
        f"and {PER_BYTE} times its weights in float32), and this machine has {memory / 1e9:.1f} GB: close other "
        f"programs{instead}, or convert on a larger machine and copy the bundle here"
    )


def count_functions(form: str, model: Bundle, network: str, options: Any) -> int:
    """Return the number of functions in a network's package. ``form`` is "coreml" or "onnx"."""
    if form == "coreml":
        return len(coreml_graphs(network, options.request(load_reference(model, network), model)))
    return len(functions_of(network, form))


@dataclass
class ConversionProgress:
    """A reporter that turns the activities of a conversion into lines with counts and the time left.

    The conversion calls ``report`` before it builds a function, and again before it measures the function, and for a
    function that it keeps from an interrupted run. The time left is an estimate for all packages. It assumes that every
    function takes time in proportion to the number of its network's weights. Until the conversion has measured a
    function, the time left is only a lower limit, because it contains no measuring.

    Args:
        show: Function that is called with a package's name and a line about the activity.
        packages: The packages to make: name, number of functions, and number of the network's weights.
        clock: Function that returns the time in seconds.
        finished: Number of packages that an interrupted run has finished.
    """

    show: Callable[[str, str], None]
    packages: Sequence[tuple[str, int, int]]
    clock: Callable[[], float] = time.monotonic
    finished: int = 0

    def __post_init__(self) -> None:
        work = sum(functions * weights for _, functions, weights in self.packages)
        self.left = dict.fromkeys(ACTIVITIES, work)  # sum over functions that are left, of their networks' weights
        self.seconds: dict[str, float] = defaultdict(float)
        self.done = Counter[str]()
        self.running: tuple[str, int, float] | None = None  # current activity, weights of its network, second it began
        self.started: Counter[tuple[int, str]] = Counter()

    def report(self, package: int, activity: str) -> None:
        """Show a line about an activity. ``package`` is the index in ``packages`` of the package that it is about."""
        name, functions, weights = self.packages[package]
        word = activity.partition(" ")[0]
        self._end()
        if word == KEEPING:
            word = ACTIVITIES[0]
            self.left[word] -= weights
        else:
            self.running = word, weights, self.clock()
        self.started[package, word] += 1
        self.show(
            name,
            f"{activity}, {self.started[package, word]} of {functions} functions, package "
            f"{self.finished + package + 1} of {self.finished + len(self.packages)}{self._time_left()}",
        )

    def _end(self) -> None:
        if self.running:
            word, weights, begun = self.running
            self.seconds[word] += self.clock() - begun
            self.done[word] += weights
            self.left[word] -= weights
            self.running = None

    def _time_left(self) -> str:
        seconds = sum(self.left[word] * self.seconds[word] / self.done[word] for word in ACTIVITIES if self.done[word])
        known = all(self.done[word] for word in ACTIVITIES if self.left[word])
        return f", {'about' if known else 'at least'} {math.ceil(seconds / 60)} min left" if seconds >= 60 else ""
