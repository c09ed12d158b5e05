"""Take pictures of the web pages for the documentation: python -m tools.screenshots [FOLDER]

FOLDER gets pictures of both pages, at every width and in both color schemes. The documentation gets those in ``KEPT``.
"""

import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tests.server.browser import open_browser
from tests.server.server_process import ServerProcess, wait_until

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TEXT = "The wind blew over the hill. It rained in the valley, and the river rose until morning."
SIZES = {"320": (320, 640), "390": (390, 844), "1280": (1280, 960)}
KEPT = {
    "1280-light-page": "page-light",
    "1280-dark-page": "page-dark",
    "390-light-page": "page-phone",
    "320-dark-page": "page-narrow",
    "1280-light-api": "page-api",
    "390-dark-api": "page-api-phone",
}
FIELDS = {"text": TEXT, "seed": "1"}
LIT = 3.0  # seconds of sound that have played when a picture is taken
COLORS = 48  # number of colors in a picture


def main() -> None:
    every = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with (
        ServerProcess("--models", "heart,demo", "--port", "8880") as server,
        tempfile.TemporaryDirectory() as downloads,
    ):
        page = open_browser(Path(downloads))
        try:
            page.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            server.wait_until_ready()
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    page.execute_cdp_cmd(
                        "Emulation.setDeviceMetricsOverride",
                        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
                    )
                    page.execute_cdp_cmd(
                        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
                    )
                    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": width < 500})
                    for kind, show in (("page", speak), ("api", try_speech)):
                        show(page, server.address)
                        save(page.get_screenshot_as_png(), f"{size}-{scheme}-{kind}", every)
        finally:
            page.quit()


def speak(page: Any, address: str) -> None:
    """Open the page that speaks, and let it speak until the picture can be taken."""
    page.get(address)
    wait_until(lambda: page.execute_script("return voices.length"))
    for field, value in FIELDS.items():
        page.execute_script("$(arguments[0]).value = arguments[1]; showCode()", field, value)
    page.find_element("id", "speak").click()
    wait_until(lambda: page.execute_script(f"return player.sound.complete && player.position > {LIT}"))


def try_speech(page: Any, address: str) -> None:
    """Open the page of the API, and send a request whose answer is sound."""
    page.get(f"{address}/docs")
    section = page.find_element("xpath", "//section[h2[@id='post-v1-audio-speech']]")
    section.find_element("css selector", "summary").click()
    section.find_element("css selector", ".try button").click()
    wait_until(lambda: section.find_elements("css selector", "audio"))
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", section.find_element("tag name", "details"))


def save(png: bytes, name: str, every: Path | None) -> None:
    """Write a picture to ``every``, and to the documentation if ``KEPT`` names it."""
    picture = Image.open(BytesIO(png)).convert("RGB").quantize(COLORS)
    if every:
        every.mkdir(exist_ok=True)
        picture.save(every / f"{name}.png", optimize=True)
    if name in KEPT:
        picture.save(FOLDER / f"{KEPT[name]}.png", optimize=True)


if __name__ == "__main__":
    main()
