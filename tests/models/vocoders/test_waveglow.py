"""WaveGlow compared with the formulas of the paper written out plainly; its checkpoints; its noise."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends import load_backend
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint, open_vocoder
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer, waveglow_noise
from ane.models.vocoders.waveglow import Waveglow, WaveglowConfig
from ane.system.errors import UserError
from tests.fastspeech_files import WAVEGLOW, waveglow_entries, write_fastspeech, write_waveglow

# exits at other places, and none at all
CONFIGS = {"small": WAVEGLOW, "four channels leave": WaveglowConfig(n_flows=4, n_early_every=3, n_early_size=4,
                                                                   n_layers=2, n_channels=8, kernel_size=5),
           "none leaves": WaveglowConfig(n_flows=2, n_early_every=2, n_layers=1, n_channels=8)}


def network(config: WaveglowConfig, path) -> Waveglow:
    module = Waveglow(config).eval().requires_grad_(False)
    module.load_state_dict(open_vocoder(write_waveglow(path, config)).tensors())
    return module


def plain_waveglow(config: WaveglowConfig, entries: dict[str, Tensor], mel: Tensor, exits: list[Tensor]) -> Tensor:
    """From noise to sound with weight norm as it is trained, (B, M, L) → (B, 256·L), in float64.

    ``exits``: the noise (B, c, T) of the last flow, then that of each exit, the last one first.
    """
    def conv(key: str, x: Tensor, dilation: int = 1) -> Tensor:
        weight = entries[f"{key}.weight"] if f"{key}.weight" in entries else torch._weight_norm(
            entries[f"{key}.weight_v"], entries[f"{key}.weight_g"], 0)
        return F.conv1d(x, weight.double(), entries[f"{key}.bias"].double(), dilation=dilation,
                        padding=(weight.shape[2] - 1) * dilation // 2)

    def wavenet(flow: int, x: Tensor) -> Tensor:
        x, skipped = conv(f"WN.{flow}.start", x), torch.zeros(())
        for layer in range(config.n_layers):
            both = conv(f"WN.{flow}.in_layers.{layer}", x, 2 ** layer)
            both = both + conv(f"WN.{flow}.cond_layers.{layer}", spectrum)
            gated = torch.tanh(both[:, :config.n_channels]) * torch.sigmoid(both[:, config.n_channels:])
            out = conv(f"WN.{flow}.res_skip_layers.{layer}", gated)
            if layer < config.n_layers - 1:
                x = x + out[:, :config.n_channels]
            skipped = skipped + out[:, -config.n_channels:]
        return conv(f"WN.{flow}.end", skipped)

    up = F.conv_transpose1d(mel.double(), entries["upsample.weight"].double(), entries["upsample.bias"].double(),
                            stride=256)[..., :-768]
    B, M, samples = up.shape
    # channel m·G + g of group t is band m at sample t·G + g
    spectrum = torch.stack([up[:, band, offset::config.n_group] for band in range(M) for offset in
                            range(config.n_group)], dim=1)
    x, waiting = exits[0].double(), list(exits[1:])
    for flow in range(config.n_flows - 1, -1, -1):
        half = x.shape[1] // 2
        shift_scale = wavenet(flow, x[:, :half])
        moved = (x[:, half:] - shift_scale[:, :half]) / torch.exp(shift_scale[:, half:])
        mixed = torch.cat([x[:, :half], moved], dim=1)
        x = torch.linalg.solve(entries[f"convinv.{flow}.conv.weight"][..., 0].double(), mixed)
        if flow and flow % config.n_early_every == 0:
            x = torch.cat([waiting.pop(0).double(), x], dim=1)
    assert not waiting
    sound = torch.zeros(B, samples, dtype=torch.float64)
    for channel in range(config.n_group):
        sound[:, channel::config.n_group] = x[:, channel]
    return sound


@pytest.mark.parametrize("name", CONFIGS)
def test_it_equals_the_formulas(name, tmp_path):
    config, generator = CONFIGS[name], torch.Generator().manual_seed(1)
    checkpoint = open_vocoder(write_waveglow(tmp_path / "w.pt", config))
    assert checkpoint.config == config, "read from the tensors"
    assert checkpoint.unused == ["epoch"]
    mel = torch.randn(2, 80, 9, generator=generator)
    noise = 0.6 * torch.randn(2, 256, 9, generator=generator)
    audio = network(config, tmp_path / "w.pt")(mel, noise)
    assert audio.shape == (2, 1, 9 * 256)
    groups = noise.transpose(1, 2).reshape(2, -1, config.n_group).transpose(1, 2)      # in the order of time
    widths = [config.flow_channels[-1], *[config.n_early_size] * ((config.n_flows - 1) // config.n_early_every)]
    assert sum(widths) == config.n_group
    expected = plain_waveglow(config, waveglow_entries(config), mel, list(groups.split(widths, dim=1)))
    torch.testing.assert_close(audio[:, 0].double(), expected, atol=2e-5, rtol=1e-5)


def test_rows_do_not_affect_each_other(tmp_path):
    module = network(WAVEGLOW, tmp_path / "w.pt")
    mel, noise = torch.randn(2, 80, 4), torch.randn(2, 256, 4)
    torch.testing.assert_close(module(mel, noise)[1:], module(mel[1:], noise[1:]), atol=1e-5, rtol=0)


def test_the_official_sizes():
    config = WaveglowConfig()
    assert config.flow_channels == [8] * 4 + [6] * 4 + [4] * 4


def test_noise_is_that_of_the_seed_and_a_longer_one_begins_with_a_shorter():
    assert np.array_equal(waveglow_noise(50, 3)[..., :20], waveglow_noise(20, 3))
    assert not np.array_equal(waveglow_noise(20, 4), waveglow_noise(20, 3))
    assert waveglow_noise(1000, 0).std() == pytest.approx(0.6, rel=0.01)
    assert waveglow_noise(4, 0).dtype == np.float32


def test_speech_repeats_and_is_the_same_alone_and_in_a_batch(tmp_path):
    model = FastSpeechCheckpoint(write_fastspeech(tmp_path / "checkpoint.pt"),
                                 vocoder=write_waveglow(tmp_path / "w.pt"))
    synthesizer = FastSpeechSynthesizer(model, load_backend("torch:cpu", model))
    texts = ["Yes.", "Hello there, how are you?"]
    together = list(synthesizer.speak_all(texts))
    for text, speech in zip(texts, together, strict=True):
        alone = synthesizer.speak(text)
        assert (speech.facts["seed"], speech.notes) == (0, [])
        assert np.abs(speech.audio - alone.audio).max() < 1e-3
        assert np.abs(alone.audio).max() <= 1
    streamed = np.concatenate(list(synthesizer.stream(texts[1])))
    assert np.array_equal(streamed, synthesizer.speak(texts[1]).audio)


@pytest.mark.parametrize(("change", "fault"), [
    (lambda entries: entries.pop("WN.1.end.bias"), r"key WN.1.end.bias is missing"),
    (lambda entries: entries.pop("upsample.weight"), r"upsample.weight is missing or no kernel"),
    (lambda entries: entries.update({"WN.0.start.bias": torch.zeros(3)}), r"WN.0.start.bias"),
    (lambda entries: entries.update({"upsample.weight": torch.zeros(40, 40, 1024)}), "takes 40 bands, and mels"),
    (lambda entries: entries.update({"upsample.weight": torch.zeros(80, 80, 64)}), "upsample_kernel at least 256"),
    (lambda entries: entries.update({"convinv.4.conv.weight": torch.zeros(4, 4, 1)}), "has no inverse")])
def test_a_damaged_checkpoint_is_refused(tmp_path, change, fault):
    entries = waveglow_entries()
    change(entries)
    torch.save({"state_dict": entries}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=fault):
        open_vocoder(tmp_path / "w.pt").tensors()
