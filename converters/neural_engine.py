"""List limits of Apple's Neural Engine that our graphs obey, and every chip with its published TFLOPS and bandwidth."""

from dataclasses import dataclass

MAX_AXIS = 16384  # largest width or height of a tensor (hollance/neural-engine; ane-guide, chapter 17)
MAX_CHANNELS = 65536  # largest number of channels that a tensor may have (ane-guide, chapter 17)
STATE_WIDTH = 32  # the length of a state's last axis must be a multiple of this number (coremltools issue 2631)
ON_CHIP = 2_000_000  # a tensor of at most this many bytes stays in the chip's own memory (ane-guide, chapter 9)

SOURCES = {
    "anemll-bench": "https://github.com/Anemll/anemll-bench/blob/main/Results.MD (bandwidths of a 1 GB matrix)",
    "ane-guide": "https://github.com/sbryngelson/ane-guide (chapter 9: M1, dispatch)",
    "maderix/ANE": "https://github.com/maderix/ANE (README.md: M4; benchmarks/ANE_BENCHMARK_REPORT.md: the others)",
}


@dataclass(frozen=True)
class Chip:
    """The Neural Engine of one chip.

    Attributes:
        name: Name of the chip.
        generation: Generation of the chip. An M1 has generation 1.
        bandwidth: Speed at which the engine reads weights, in GB/s.
        tflops: Speed at which the engine computes in fp16, in TFLOPS.
        source: Publications that state the two figures.
        assumed: The figure that nobody published, and how we derived it from other figures. "" means that both figures
            were published.
    """

    name: str
    generation: int
    bandwidth: float
    tflops: float
    source: str
    assumed: str = ""


_BENCH = "GB/s: anemll-bench"
_ANE_GUIDE = f"{_BENCH}; TFLOPS: ane-guide, chapter 9, sustained (12 in a deep fused chain)"
_MADERIX = f"{_BENCH}; TFLOPS: maderix/ANE, 128 convolutions of 512 channels, through private interfaces"
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("M1", 1, 60.9, 4.8, _ANE_GUIDE),
        Chip("M1 Max", 1, 54.6, 4.8, _BENCH, "TFLOPS as the M1's"),
        Chip("M2", 2, 60.5, 6.9, _BENCH, "TFLOPS as the M1's times Apple's TOPS, 15.8 / 11"),
        Chip("M3", 3, 63.1, 9.98, _BENCH, "TFLOPS as the M3 Pro's (maderix/ANE)"),
        Chip("M3 Max", 3, 120.2, 9.98, _BENCH, "TFLOPS as the M3 Pro's (maderix/ANE)"),
        Chip("M4", 4, 64.2, 18.6, _MADERIX),
        Chip("M4 Pro", 4, 126.4, 12.6, _MADERIX),
        Chip("M4 Max", 4, 118.9, 10.9, _MADERIX),
        Chip("M5", 5, 70.2, 12.2, f"{_MADERIX}; ane-guide, chapter 12, has 145 GB/s and 9.5 to 19.6 TFLOPS"),
        Chip("M5 Max", 5, 148.4, 12.2, _BENCH, "TFLOPS as the M5's"),
    )
}
