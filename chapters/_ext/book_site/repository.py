"""Links to the repository: on as soon as `repository_url` in `_config.yml` names one."""

from typing import Any

BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")
# papermill wrote these pages; there is no source to edit.
GENERATED = "experiments/results/"


def configure(_: Any, config: Any) -> None:
    """Turn the theme's buttons on if there is an address."""
    options = config.html_theme_options
    options |= dict.fromkeys(BUTTONS, bool(options.get("repository_url")))


def hide_edit(_app: Any, page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """No edit button on a page that has no source in the repository."""
    groups = [each for each in context.get("header_buttons", []) if each["type"] == "group"]
    for group in groups if page.startswith(GENERATED) else []:
        group["buttons"] = [each for each in group["buttons"] if each["label"] != "source-edit-button"]
