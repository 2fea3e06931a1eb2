"""What the theme cannot do for this book's site: a Sphinx extension, named in `_config.yml`."""

from typing import Any

from book_site import access, downloads, head, mathjax, pictures, repository, weight


def setup(app: Any) -> dict[str, Any]:
    """Connect each part to the event at which Sphinx calls it."""
    app.connect("config-inited", mathjax.configure)
    app.connect("config-inited", repository.configure)
    app.connect("html-page-context", head.describe)
    app.connect("html-page-context", pictures.extract)
    app.connect("html-page-context", access.repair)
    app.connect("html-page-context", downloads.offer, priority=500)  # before the theme's buttons, at 501
    app.connect("html-page-context", repository.hide_edit, priority=502)  # after them
    app.connect("build-finished", mathjax.install)
    app.connect("build-finished", downloads.lighten)
    app.connect("build-finished", weight.drop)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
