"""Whether an engine keeps a decoder's state on this machine as it should: tried once for each package, then remembered.

A prefix that is stored in the state and continued column by column must give what one call without a cache gives, on
the same engine, with the same weights.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.functions import EngineRefusalError, PackageFunction
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.system.files import read_json

THRESHOLD = 30.0        # dB; fp16 gives 50, a column that is not stored less than 10
STEPS = 2               # the second also sees a column that is not stored yet


def read_problem(path: Path) -> str | None:
    """What a trial found, from the file that remembers it: "": states work; None: not tried, or the file is damaged."""
    with suppress(UserError, KeyError, TypeError):
        return str(read_json(path)["problem"])
    return None


def try_state(make: Callable[[], PackagedDecoder], prefills: Sequence[PackageFunction], width: int,
              memory_length: int | None) -> str:
    """Why states do not work, or "". ``make``: a decoder of one lane and ``STEPS`` columns on functions with states."""
    rng = np.random.default_rng(0)
    count = max(function.bucket["columns"] for function in prefills)
    columns = rng.standard_normal((min(count, 64 + STEPS + 4), width), dtype=np.float32)
    memory = rng.standard_normal((memory_length, width), dtype=np.float32) if memory_length else None
    try:
        decoder = make()
        if memory is not None:
            decoder.set_memory(memory)
        expected = decoder.prefill(columns)
        decoder.prefill(columns[:-STEPS])
        for index, column in enumerate(columns[-STEPS:]):
            hidden, logits = decoder.step(column[None, None], np.array([index]))
    except EngineRefusalError as error:
        return str(error)
    found = min(snr_db(expected[0], hidden[0, 0]), snr_db(expected[1], logits[0]))
    return "" if found >= THRESHOLD else f"a state of {prefills[0].package} returns other values ({found:.0f} dB)"
