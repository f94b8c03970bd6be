"""Screenshots of a run's page, for docs/viewer.md.

    python scripts/shoot_viewer.py RUN OUT_FOLDER --first "choose(3);"

Needs Chromium with chromedriver, and ``pip install 'rllib-llm[browser]'``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from rllib_llm.viewer import write_page

# Name of the picture, and what is done on the page before it is taken.
SHOTS = {
    "tokens": "setTint('surprise'); for (let i = 0; i < 3; i++) goToToken(1);",
    "group": "flip('group');",
    "lanes": "setTint('surprise');",
    "advantage": "",
    "entropy_dark": "setTheme('dark'); setTint('entropy');",
    "dark": "setTheme('dark');",
    "run": "document.getElementById('run').open = true;",
}


def main() -> None:
    """Write one PNG for each of ``SHOTS``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", default="", help="JavaScript before every picture")
    parser.add_argument("--only", nargs="*", choices=SHOTS, default=list(SHOTS))
    parser.add_argument("--size", default="1360,860")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = given.run
        if page.is_dir():
            page = write_page(given.run, Path(folder) / "page.html")[0]
        browser = open_browser(folder, given.size)
        for name in given.only:
            browser.get(page.resolve().as_uri())
            WebDriverWait(browser, 60).until(_is_ready)
            browser.execute_script("setTheme('light');" + given.first + SHOTS[name])
            browser.save_screenshot(str(given.out / f"viewer_{name}.png"))
        browser.quit()


def _is_ready(browser: webdriver.Chrome) -> bool:
    code = "return document.documentElement.dataset.ready === 'yes'"
    return browser.execute_script(code)


def open_browser(folder: str, size: str) -> webdriver.Chrome:
    """Return headless Chromium with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--window-size={size}",
        f"--user-data-dir={folder}/profile",
    ):
        options.add_argument(flag)
    return webdriver.Chrome(
        options=options, service=Service(shutil.which("chromedriver"))
    )


if __name__ == "__main__":
    main()
