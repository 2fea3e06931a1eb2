"""The addresses of the repository and of the site: `CITATION.cff` is the only place that has them."""

from pathlib import Path
from typing import Any

import yaml
from sphinx.util import logging

CITATION = Path(__file__).resolve().parents[3] / "CITATION.cff"
BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")
# A page's line, and what the site has in its place: with the address, and where that is not known.
COMMAND = "git clone REPOSITORY collectives  # the address of this book's repository"
KNOWN = "git clone {} collectives"
UNKNOWN = "# first, put a copy of this book's repository into the folder collectives"
# papermill wrote these pages; there is no source to edit.
GENERATED = "experiments/results/"


def configure(_: Any, config: Any) -> None:
    """Turn the theme's buttons on if there is an address, and else say what lacks it."""
    given = citation()
    config.html_baseurl = given.get("url", "")
    options, address = config.html_theme_options, given.get("repository-code", "")
    options |= {"repository_url": address} | dict.fromkeys(BUTTONS, bool(address))
    # No warning of Sphinx, which would end the build of whoever has no public repository.
    if not address:
        text = "no repository-code in %s: readers of its pages and notebooks have to find the repository themselves"
        logging.getLogger(__name__).info(text, CITATION.name, color="yellow")


def citation() -> dict[str, Any]:
    """What `CITATION.cff` says."""
    return dict(yaml.safe_load(CITATION.read_text(encoding="utf8")))


def name(app: Any, _page: str, source: list[str]) -> None:
    """Write the address into a page's commands, or what a reader does without it."""
    address = app.config.html_theme_options["repository_url"]
    source[0] = source[0].replace(COMMAND, KNOWN.format(address) if address else UNKNOWN)


def hide_edit(_app: Any, page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """No edit button on a page that has no source in the repository."""
    groups = [each for each in context.get("header_buttons", []) if each["type"] == "group"]
    for group in groups if page.startswith(GENERATED) else []:
        group["buttons"] = [
            each for each in group["buttons"] if each["label"] != "source-edit-button"
        ]
