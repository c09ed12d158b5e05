"""Run stages on rows of any length, in windows, and say how long a row may be if a stage has no windows.

The backend says how long a row of one call may be (``Backend.row_limit``), so a model knows nothing of packages.
"""

from collections.abc import Iterator

import numpy as np

from ane.backends.base import Backend

STEP = 32  # calls have multiples of it: libraries keep compiled code for each length that they met
MOST_ROWS = 960  # new rows of a call of ``run_rows``


def longest_pass(backend: Backend, stage: str, positions: int) -> int:
    """Return how many of a model's ``positions`` one call of a stage takes on this backend."""
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
    """Yield the output of a stage with a mask for rows x (N, C), window after window, (rate · n, C') each.

    Args:
        backend: Backend of the stage.
        stage: Name of the stage.
        margin: Rows on either side that an output depends on.
        x: All rows, (N, C) float32.
        rate: Outputs of a row.
        first: The most new rows of the first window.
        name: Name of the stage's input.
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
