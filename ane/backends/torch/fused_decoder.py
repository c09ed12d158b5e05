"""A decoder step in few kernels, written in Triton: five for each layer of a GPT-2, where torch launches about 19.

``StaticDecoder`` is the reference. Lengths are read on the device, so that a single recorded graph serves all of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ane.backends.torch.static_decoder import StaticDecoder
from ane.backends.torch.triton_kernels import attend, linear


class FusedStaticDecoder(StaticDecoder):
    """A ``StaticDecoder`` of a GPT-2 (``DecoderStage.gpt2``) whose steps of one column run on Triton's kernels.

    Prefills and steps of several columns are those of ``StaticDecoder``, with the same weights.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.smallest = self.capacity       # a single bucket: the kernels read as many positions as a lane has

    def _hidden(self, bucket: int) -> Tensor:
        x = self.columns.device[:, 0]
        for layer, block in enumerate(self.network.gpt.h):
            x = fused_block(block, x, partial(self._attend_fused, layer))
        return self.network.hidden_of(x)[:, None]

    def _attend_fused(self, layer: int, qkv: Tensor) -> Tensor:
        lengths, prefix_indices = self.indices.device
        return attend(qkv, self.keys[layer], self.values[layer], self.prefix_keys[layer], self.prefix_values[layer],
                      lengths, prefix_indices, self.prefix_length, self.capacity)


def fused_block(block: Any, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """A block of GPT-2, (lanes, D) → (lanes, D) float32; ``attend`` is a function (lanes, 3 · D) → (lanes, D)."""
    qkv = linear(x, block.attn.c_attn, norm=block.ln_1)
    x = linear(attend(qkv), block.attn.c_proj, residual=x)
    wide = linear(x, block.mlp.c_fc, norm=block.ln_2, gelu=True)
    return linear(wide, block.mlp.c_proj, residual=x)
