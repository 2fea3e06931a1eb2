"""The addresses of the repository and of the site: `CITATION.cff` is the only place that has them."""

from pathlib import Path
from typing import Any

import yaml

CITATION = Path(__file__).resolve().parents[3] / "CITATION.cff"
BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")
# What a page writes in place of the address, and shows until there is one.
COMMAND = "git clone {}"
UNKNOWN = "REPOSITORY"
# papermill wrote these pages; there is no source to edit.
GENERATED = "experiments/results/"


def configure(_: Any, config: Any) -> None:
    """Turn the theme's buttons on if there is an address."""
    given = citation()
    config.html_baseurl = given.get("url", "")
    options, address = config.html_theme_options, given.get("repository-code", "")
    options |= {"repository_url": address} | dict.fromkeys(BUTTONS, bool(address))


def citation() -> dict[str, Any]:
    """What `CITATION.cff` says."""
    return dict(yaml.safe_load(CITATION.read_text(encoding="utf8")))


def name(app: Any, _page: str, source: list[str]) -> None:
    """Write the address into a page's commands."""
    if address := app.config.html_theme_options["repository_url"]:
        source[0] = source[0].replace(COMMAND.format(UNKNOWN), COMMAND.format(address))


def hide_edit(_app: Any, page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """No edit button on a page that has no source in the repository."""
    groups = [each for each in context.get("header_buttons", []) if each["type"] == "group"]
    for group in groups if page.startswith(GENERATED) else []:
        group["buttons"] = [each for each in group["buttons"] if each["label"] != "source-edit-button"]
