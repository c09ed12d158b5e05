"""Drawing tokens from logits on the device, for all lanes of a decoder at once.

The functions of ``ane.models.tortoise.sampling`` on rows of tensors: the same uniform number gives the same token,
unless it is within rounding of the border between two. Only ``MOST_TOP_K`` scores of a row are looked at.
"""

import torch
from torch import Tensor

from ane.backends.base import Draws
from ane.backends.torch.cuda_graphs import HostDeviceTensor

MOST_TOP_K = 64


class DrawBuffers:
    """What drawing reads and writes, at fixed addresses, for all lanes of a decoder.

    Attributes:
        tokens: (lanes,) int64, -1: not drawn. probabilities: (lanes,) float32.
    """

    def __init__(self, device: torch.device, lanes: int, longest: int):
        """``longest``: ids of a history."""
        self.history = HostDeviceTensor(device, lanes, longest, dtype=torch.int32)
        self.uniform = HostDeviceTensor(device, lanes, dtype=torch.float64)
        self.options = HostDeviceTensor(device, 3, lanes)                       # penalty, temperature, 1 - top_p
        self.top_k = HostDeviceTensor(device, lanes, dtype=torch.int64)
        self.excluded = HostDeviceTensor(device, 1, dtype=torch.int64)
        self.tokens = HostDeviceTensor(device, lanes, dtype=torch.int64)
        self.probabilities = HostDeviceTensor(device, lanes)

    def send(self, draws: Draws, lanes: slice) -> None:
        """Send what ``lanes`` draw with; other lanes draw something that nobody reads."""
        history = self.history.host.numpy()
        history[lanes] = draws.history[:, :1]
        history[lanes, :draws.history.shape[1]] = draws.history
        self.uniform.host.numpy()[lanes] = draws.uniform
        options, top_k = self.options.host.numpy(), self.top_k.host.numpy()
        options[:2], top_k[:] = 1, 1
        options[:, lanes] = draws.penalty, draws.temperature, 1 - draws.top_p
        top_k[lanes] = draws.top_k
        self.excluded.host.numpy()[:] = draws.excluded
        for buffer in (self.history, self.uniform, self.options, self.top_k, self.excluded):
            buffer.send()

    def draw(self, logits: Tensor) -> None:
        """Draw from logits (lanes, V) float32, from buffers to buffers."""
        tokens, probabilities = draw(logits, self.history.device.long(), self.uniform.device, *self.options.device,
                                     self.top_k.device, self.excluded.device)
        self.tokens.device.copy_(tokens)
        self.probabilities.device.copy_(probabilities)


def draw(logits: Tensor, history: Tensor, uniform: Tensor, penalty: Tensor, temperature: Tensor, rest: Tensor,
         top_k: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token from each row of logits (n, V) float32; ``rest`` is 1 - top_p, the others are as in ``Draws``.

    Returns tokens (n,) int64, -1 where none was drawn, and their probabilities (n,) float32.
    """
    scores = logits.index_fill(1, excluded, float("-inf"))
    seen, penalty = scores.gather(1, history), penalty[:, None]
    scores = scores.scatter(1, history, torch.where(seen < 0, seen * penalty, seen / penalty))
    ids, scores, complete = most_likely(scores, temperature[:, None], top_k[:, None])
    scores = without_least_likely(scores, rest[:, None])
    probabilities = scores.log_softmax(1).exp()
    cumulative = probabilities.double().cumsum(1)
    passed = cumulative <= uniform[:, None] * cumulative[:, -1:]
    last = (probabilities > 0).long().cumsum(1).argmax(1)
    index = torch.minimum(passed.sum(1), last)[:, None]
    drawn = complete & logits.isfinite().all(1)
    return (torch.where(drawn, ids.gather(1, index)[:, 0], -1), probabilities.gather(1, index)[:, 0])


def most_likely(scores: Tensor, temperature: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ``top_k`` largest of each row of scores (n, V), divided by the temperature, and those equal to the last.

    Returns ``MOST_TOP_K`` ids of each row, ascending, their scores, -inf if they are not among these, and (n,) bool:
    whether these are all.
    """
    kept = min(MOST_TOP_K, scores.shape[1])
    best, ids = scores.topk(kept, dim=1)
    best = best / temperature
    least = best.gather(1, (top_k - 1).clamp(max=kept - 1))
    complete = (best[:, -1:] < least)[:, 0] | (kept == scores.shape[1])
    best = best.masked_fill(best < least, float("-inf"))
    ids, order = ids.sort(1)
    return ids, best.gather(1, order), complete


def without_least_likely(scores: Tensor, rest: Tensor) -> Tensor:
    """Scores (n, K), ordered by id, with -inf for the least likely, whose probability together is at most ``rest``."""
    ascending, order = scores.sort(dim=1, stable=True)
    dropped = ascending.log_softmax(1).exp().cumsum(1) <= rest
    dropped[:, -1] = False
    return scores.masked_fill(dropped.scatter(1, order, dropped), float("-inf"))
