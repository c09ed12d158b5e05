"""Run a stage on an input of any length, window by window.

``Backend.row_limit`` says how long the input of one call may be, so a model does not need to know about packages. If a
stage cannot run in windows, ``longest_pass`` returns the limit for its input.
"""

from collections.abc import Iterator

import numpy as np

from ane.backends.base import Backend

STEP = 32  # lengths of calls are multiples of 32, because libraries keep compiled code for every length that they meet
MOST_ROWS = 960  # largest number of new rows per call in ``run_rows``


def longest_pass(backend: Backend, stage: str, positions: int) -> int:
    """Return how many positions a stage (network call) can take on this backend, at most the model's ``positions``."""
    return min(positions, backend.row_limit(stage).most or positions)


def run_rows(
    backend: Backend,
    stage: str,
    margin: int,
    x: np.ndarray,
    rate: int = 1,
    first: int = MOST_ROWS,
    name: str = "frames",
) -> Iterator[np.ndarray]:
    """Run a stage (network call) on rows ``x``, window by window.

    For the n new rows of each window, yield the output (rate · n, C'). The stage takes rows and a mask, which is 0 for
    padding.

    Args:
        backend: Backend that runs the stage.
        stage: Name of the stage.
        margin: Number of rows before and after a row on which the row's output depends.
        x: All rows, (N, C) float32.
        rate: Number of output rows per input row.
        first: Largest number of new rows in the first window.
        name: Name of the stage's input for the rows.
    """
    limit = backend.row_limit(stage).most
    most = MOST_ROWS if limit is None else limit - 2 * margin
    done, size = 0, min(first, most)
    while done < len(x):
        begin, stop = max(done - margin, 0), min(done + size, len(x))
        end = min(stop + margin, len(x))
        length = end - begin
        window = np.zeros((1, min(-(-length // STEP) * STEP, limit or 10**9), x.shape[1]), np.float32)
        window[0, :length] = x[begin:end]
        mask = (np.arange(window.shape[1]) < length).astype(np.float32)[None]
        yield backend.run(stage, **{name: window}, mask=mask)[0, rate * (done - begin) : rate * (stop - begin)]
        done, size = stop, most
