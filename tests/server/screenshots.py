"""The pictures of the page in the documentation: python -m tests.server.screenshots [FOLDER]"""

import sys
import tempfile
from pathlib import Path

from tests.server.browser import open_browser
from tests.server.server_process import ServerProcess, wait_until

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TEXT = "The wind blew over the hill. It rained in the valley, and the river rose until morning."
PICTURES = {"page-light": (880, 1240, "light"), "page-dark": (880, 1240, "dark"), "page-phone": (390, 1240, "light")}
FIELDS = {"text": TEXT, "voice": "michael", "preset": "fastest", "seed": "1"}
LIT = 3.0           # seconds into the sound


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    with ServerProcess("--models", "demo,heart", "--preload", "demo", "--port", "8880") as server, \
            tempfile.TemporaryDirectory() as downloads:
        page = open_browser(Path(downloads))
        try:
            page.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            server.wait_until_ready()
            for name, (width, height, scheme) in PICTURES.items():
                page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                    "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
                page.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                    "features": [{"name": "prefers-color-scheme", "value": scheme}]})
                page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": width < 500})
                page.get(server.address)
                wait_until(lambda: page.execute_script("return voices.length"))
                for field, value in FIELDS.items():
                    page.execute_script("$(arguments[0]).value = arguments[1]; showCode()", field, value)
                page.find_element("id", "speak").click()
                wait_until(lambda: page.execute_script(
                    f"return player.sound.complete && player.position > {LIT}"))
                page.get_screenshot_as_file(str(folder / f"{name}.png"))
        finally:
            page.quit()


if __name__ == "__main__":
    main()
