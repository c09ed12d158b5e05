"""Open Chromium without a window, for the tests of the web page."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest


def open_browser(downloads: Path) -> Any:
    """A Selenium driver; skips, with the command that installs it, when there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs Selenium: pip install '.[test]'")
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    browser, driver = next(filter(None, found), None), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1000,1400",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument",
        {"source": Path(__file__).with_name("recorder.js").read_text(encoding="utf-8")},
    )
    return opened
