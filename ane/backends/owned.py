"""A backend that one thread alone may use: whoever calls it, its calls run there, one after the other."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser

END = object()


class Owned:
    """What one thread owns: a backend, or a decoder or denoiser that it returned. Calls of its methods run there.

    Args:
        thread: a pool of one thread, which made the thing.
    """

    def __init__(self, thing: Any, thread: ThreadPoolExecutor):
        self._thing, self._thread = thing, thread

    def end(self) -> None:
        """End the thread after the calls that wait."""
        self._thread.shutdown(wait=False)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return partial(self._run, value) if callable(value) else value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._run(self._thing, *arguments, **named)

    def _run(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = self._thread.submit(method, *arguments, **named).result()
        if isinstance(result, Iterator):
            return self._each(result)
        return Owned(result, self._thread) if isinstance(result, (Decoder, Denoiser)) else result

    def _each(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items of an iterator, each made on the thread; it is closed there, too."""
        try:
            while (item := self._thread.submit(next, items, END).result()) is not END:
                yield item
        finally:
            if close := getattr(items, "close", None):
                self._thread.submit(close).result()
