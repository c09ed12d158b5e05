"""Count the work of a call, or compare the times of two, because one time alone would be too noisy."""

import sys
import time
from collections.abc import Callable


def grows_linearly(work: Callable[[int], object], length: int) -> bool:
    """Whether four times the length takes less than eight times the CPU time. What seems slower is measured again."""

    def seconds(size: int) -> float:
        began = time.process_time()
        work(size)
        return time.process_time() - began

    return any(seconds(4 * length) < 8 * seconds(length) + 0.05 for _ in range(3))


def lines_run(function, *arguments) -> int:
    """Lines of Python that a call runs."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count
