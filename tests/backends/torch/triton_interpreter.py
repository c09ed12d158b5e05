"""Runs the kernels of ``triton_kernels`` in Triton's interpreter, whether or not triton was imported before.

TRITON_INTERPRET=1 alone works only if it is set before triton is first imported, and other tests of the process may
have imported it. So every compiled function is replaced by an interpreted one, and restored at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from ane.backends.torch import triton_kernels


class InterpretedKernel(InterpretedFunction):
    """A kernel in the interpreter; ``FakeCudaGraph`` records its launch, and not what the interpreter does."""

    def run(self, *arguments: Any, **options: Any) -> None:
        launch = partial(super().run, *arguments, **options)
        with _disable_current_modes() as modes:
            launch()
        for mode in modes:
            mode.launch(launch)


@contextmanager
def interpreted_kernels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for module in (tl, tl.standard, triton_kernels):
            for name, function in list(vars(module).items()):
                if isinstance(function, JITFunction):
                    patch.setattr(module, name, InterpretedKernel(function.fn))
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
        with patched_once(patch):
            yield


def dot(self: Any, a: Any, b: Any, total: Any, *_: Any) -> interpreter.TensorHandle:
    """The interpreter's own multiplies the bits of bfloat16 as if they were integers."""
    left, right = (each.data if each.dtype != tl.bfloat16 else
                   (each.data.astype(np.uint32) << 16).view(np.float32) for each in (a, b))
    return interpreter.TensorHandle(np.matmul(left, right, dtype=total.data.dtype) + total.data, total.dtype.scalar)


@contextmanager
def patched_once(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the interpreter patch triton.language once, and not at every call of a function: a step is 10 times faster.
    """
    if not hasattr(interpreter, "_LangPatchScope"):         # another release of Triton
        yield
        return
    scopes = [interpreter._patch_lang(function.fn) for function in (triton_kernels.linear_kernel, tl.sum)]
    patch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
    yield
    for scope in reversed(scopes):
        scope.restore()
