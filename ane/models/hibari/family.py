"""What hibari declares to bundles, backends and commands."""

from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.hibari.networks import NETWORKS
from ane.models.hibari.settings import HibariSettings
from ane.models.hibari.stages import HIBARI_STAGES
from ane.system.errors import UserError

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.hibari.networks.hibari import HibariConfig
    from ane.models.hibari.synthesizer import HibariSynthesizer


class HibariFamily(ModelFamily):
    name, title = "hibari", "hibari"
    networks, stages, settings = NETWORKS, HIBARI_STAGES, HibariSettings
    kept = True
    package_formats = frozenset(("coreml", "onnx"))

    def synthesizer(self, model: Model, backend: "Backend") -> "HibariSynthesizer":
        from ane.models.hibari.synthesizer import HibariSynthesizer

        return HibariSynthesizer(model, backend)

    def is_random(self, model: Model) -> bool:
        return True

    def check_value(self, name: str, value: Any, official: Any, where: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{where}: {name} must be like {official!r}, not {value!r}")

    def check_config(self, network: str, config: "HibariConfig", where: str) -> None:
        for width in ("width", "prosody_width"):
            if getattr(config, width) % config.heads:
                raise UserError(f"{where}: {width} {getattr(config, width)} cannot be split among {config.heads} heads")


FAMILY = HibariFamily()
