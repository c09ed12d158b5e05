"""Let every thread use a backend whose engine works on one thread only."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser

END = object()


class Owned:
    """Wraps a backend, decoder or denoiser, and runs all its methods on the thread that created it.

    Args:
        thing: The object to wrap. If a method of the object returns a decoder or a denoiser, the caller gets a wrapper
            of this decoder or denoiser.
        thread: Pool whose only thread is the thread that created ``thing``.
    """

    def __init__(self, thing: Any, thread: ThreadPoolExecutor):
        self._thing, self._thread = thing, thread

    def end(self) -> None:
        """Stop the thread as soon as it has run the calls that are still waiting."""
        self._thread.shutdown(wait=False)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return partial(self._run, value) if callable(value) else value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._run(self._thing, *arguments, **named)

    def _run(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = self._thread.submit(method, *arguments, **named).result()
        if isinstance(result, Iterator):
            return self._iterate(result)
        return Owned(result, self._thread) if isinstance(result, (Decoder, Denoiser)) else result

    def _iterate(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of an iterator. The owning thread computes every item and closes the iterator."""
        try:
            while (item := self._thread.submit(next, items, END).result()) is not END:
                yield item
        finally:
            if close := getattr(items, "close", None):
                self._thread.submit(close).result()
