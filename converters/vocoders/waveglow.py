"""WaveGlow in segments of audio, as a Core ML graph; reference: ``ane.models.vocoders.waveglow``.

The last axis holds groups of ``n_group`` samples, in noise, flows and sound, which is the rate that the flows compute
at. The transposed convolution from frames to samples therefore goes to groups: what the reference puts side by side
afterwards are here its output channels.
"""

from functools import partial

import numpy as np

from ane.models.vocoders.waveglow import HOP, Waveglow, WaveNet
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.vocoders.segments import SoundMask, check_width, cropped


def waveglow(network: Waveglow, frames: int) -> CoreMLGraph:
    """The sound of ``frames`` frames, computed from these and ``margin`` more on either side.

    mel (1, M, 1, W), noise (1, G, 1, W·256/G), inside (1, 1, 1, W) → sound (1, G, 1, frames·256/G), sample g of each
    group in channel g, where W = frames + 2·margin. ``inside`` is 1 in the frames of the sound and 0 before and after
    it, where mel and noise are 0.

    Raises:
        UserError: more frames than the engine's widest axis allows.
    """
    config = network.config
    rate, margin = HOP // config.n_group, config.margin
    check_width("waveglow", frames, margin, rate)
    width = frames + 2 * margin
    return CoreMLGraph("waveglow", {"frames": frames, "margin": margin},
                       {"mel": (1, config.n_mel_channels, 1, width), "noise": (1, config.n_group, 1, width * rate),
                        "inside": (1, 1, 1, width)}, partial(_waveglow, network=network))


def _waveglow(s: Style, mel: Var, noise: Var, inside: Var, *, network: Waveglow) -> dict[str, Var]:
    config, before = network.config, network.config.margin
    rate, sound = HOP // config.n_group, SoundMask(inside, before)
    spectrum, used = _spectrum(s, mel, network), config.flow_channels[-1]
    x = _channels(noise, 0, used)
    for flow, margin in zip(reversed(range(config.n_flows)), config.level_margins, strict=True):
        x, spectrum, noise = (cropped(value, (before - margin) * rate) for value in (x, spectrum, noise))
        before, mask = margin, sound.at(s, margin, rate)
        first, second = mb.split(x=x, num_splits=2, axis=1)
        # the last layer's weights are negated: (second − shift) / exp(scale) is (second + [−shift]) · exp(−scale)
        shift, scale = mb.split(x=_wavenet(s, first, spectrum, mask, network.WN[flow], f"WN.{flow}"), num_splits=2,
                                axis=1)
        x = mb.concat(values=[first, mb.mul(x=mb.add(x=second, y=shift), y=mb.exp(x=scale))], axis=1)
        x = mb.mul(x=blocks.linear(s, x, network.convinv[flow].conv), y=mask, **blocks.named(f"convinv.{flow}"))
        if flow and flow % config.n_early_every == 0:
            x = mb.concat(values=[_channels(noise, used, config.n_early_size), x], axis=1)
            used += config.n_early_size
    return {"sound": cropped(x, before * rate)}


def _spectrum(s: Style, mel: Var, network: Waveglow) -> Var:
    """(1, M, 1, W) → (1, M·G, 1, W·256/G): channel m·G + g is band m at sample g of each group."""
    config = network.config
    rate, size = HOP // config.n_group, config.upsample_kernel
    weight, bias = blocks.kernel(network.upsample)                              # (in, out, 1, size)
    weight = np.pad(weight[:, :, 0], ((0, 0), (0, 0), (0, -size % config.n_group)))
    weight = weight.reshape(*weight.shape[:2], -1, config.n_group).swapaxes(2, 3)
    weight = weight.reshape(weight.shape[0], -1, 1, weight.shape[3])
    x = mb.conv_transpose(x=mel, weight=s.const(weight), bias=s.const(np.repeat(bias, config.n_group)),
                          strides=[1, rate], pad_type="valid")
    return mb.slice_by_index(x=x, begin=(0, 0, 0, 0), end=(*x.shape[:3], mel.shape[3] * rate))


def _wavenet(s: Style, x: Var, spectrum: Var, mask: Var, network: WaveNet, name: str) -> Var:
    """(1, c, 1, n), spectrum (1, M·G, 1, n) → minus the shift and the logarithm of the scale, (1, 2·c, 1, n)."""
    x = mb.mul(x=blocks.linear(s, x, network.start), y=mask)
    total, layers = None, zip(network.in_layers, network.cond_layers, network.res_skip_layers, strict=True)
    for index, (conv, condition, output) in enumerate(layers):
        both = mb.add(x=blocks.same_conv(s, x, conv, f"{name}.in_layers.{index}"),
                      y=blocks.linear(s, spectrum, condition, f"{name}.cond_layers.{index}"))
        signal, gate = mb.split(x=both, num_splits=2, axis=1)
        out = blocks.linear(s, mb.mul(x=mb.tanh(x=signal), y=mb.sigmoid(x=gate)), output,
                            f"{name}.res_skip_layers.{index}")
        if out.shape[1] > x.shape[1]:           # all but the last layer
            residual, out = mb.split(x=out, num_splits=2, axis=1)
            x = mb.mul(x=mb.add(x=x, y=residual), y=mask)
        total = out if total is None else mb.add(x=total, y=out)
    return blocks.linear(s, total, network.end, scale=-1)


def _channels(x: Var, start: int, count: int) -> Var:
    return mb.slice_by_index(x=x, begin=(0, start, 0, 0), end=(1, start + count, 1, x.shape[3]))
