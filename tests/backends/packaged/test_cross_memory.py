"""The keys and values of a memory as inputs of functions: they are copied into Core ML's buffers when they change."""

from types import SimpleNamespace

import numpy as np

from ane.backends.packaged.decoder import CrossMemory, joined_logits


def memory(value: float) -> CrossMemory:
    return CrossMemory({name: np.full((1, 2, 3, 4), value, np.float16) for name in ("memory_keys", "memory_values")})


def loaded_by_core_ml() -> SimpleNamespace:
    """What a function loaded by Core ML has: float32 buffers, which callers share."""
    buffers = {name: np.zeros((1, 2, 3, 4), np.float32) for name in ("x", "memory_keys", "memory_values")}
    return SimpleNamespace(loaded=SimpleNamespace(buffers=buffers, content=None))


def test_the_buffers_are_the_inputs_and_are_filled_when_another_memory_is_used():
    function, first, second = loaded_by_core_ml(), memory(1), memory(2)
    buffers = function.loaded.buffers
    for chosen, value in ((first, 1), (first, 1), (second, 2), (first, 1)):
        inputs = chosen.inputs(function)
        assert inputs.keys() == {"memory_keys", "memory_values"}
        assert all(inputs[name] is buffers[name] for name in inputs)
        assert all((array == value).all() for array in inputs.values())


def test_a_memory_that_is_already_in_the_buffers_is_not_copied():
    function, used = loaded_by_core_ml(), memory(1)
    used.inputs(function)
    function.loaded.buffers["memory_keys"][...] = 7
    assert (used.inputs(function)["memory_keys"] == 7).all()


def test_a_runtime_without_buffers_gets_the_arrays_themselves():
    chosen = memory(1)
    assert chosen.inputs(SimpleNamespace(loaded=object())) is chosen.arrays


def test_parts_of_the_logits_are_joined_in_their_order():
    """Also with more than ten parts, whose names do not sort by number."""
    outputs = {f"logits_{part}": np.full((1, 2, 1, 3), part) for part in reversed(range(12))}
    assert joined_logits({**outputs, "hidden": np.zeros((1, 5, 1, 3))}, slice(1, 3)).tolist() == [
        [part for part in range(12) for _ in range(2)]] * 2
