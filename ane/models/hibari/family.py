"""What hibari declares to bundles, backends and commands."""

from typing import TYPE_CHECKING

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.hibari.networks import NETWORKS
from ane.models.hibari.settings import HibariSettings
from ane.models.hibari.stages import HIBARI_STAGES

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.hibari.synthesizer import HibariSynthesizer


class HibariFamily(ModelFamily):
    name, title = "hibari", "hibari"
    networks, stages, settings = NETWORKS, HIBARI_STAGES, HibariSettings

    def synthesizer(self, model: Model, backend: "Backend") -> "HibariSynthesizer":
        from ane.models.hibari.synthesizer import HibariSynthesizer

        return HibariSynthesizer(model, backend)


FAMILY = HibariFamily()
