"""What the theme cannot do for this book's site: a Sphinx extension, named in `_config.yml`."""

import os
from typing import Any

from book_site import (
    access,
    anywhere,
    commands,
    downloads,
    front,
    head,
    icons,
    live,
    llms,
    mathjax,
    outputs,
    pictures,
    policy,
    repository,
    weight,
)


def setup(app: Any) -> dict[str, Any]:
    """Connect each part to the event at which Sphinx calls it."""
    read_beside(app)
    outputs.keep()
    app.connect("config-inited", mathjax.configure)
    app.connect("config-inited", repository.configure)
    app.connect("source-read", repository.name)
    app.connect("doctree-resolved", live.mark)
    app.connect("html-page-context", head.describe)
    app.connect("html-page-context", pictures.extract)
    app.connect("html-page-context", access.repair)
    app.connect("html-page-context", commands.keep_words)
    # Before the theme's buttons, at 501.
    app.connect("html-page-context", downloads.offer, priority=500)
    app.connect("html-page-context", repository.hide_edit, priority=502)  # after them
    app.connect("html-page-context", anywhere.launch, priority=502)
    app.connect("html-page-context", live.load)
    app.connect("build-finished", front.lead)
    app.connect("build-finished", mathjax.install)
    app.connect("build-finished", downloads.write)
    app.connect("build-finished", live.write)
    app.connect("build-finished", llms.write)
    app.connect("build-finished", weight.drop)
    app.connect("build-finished", icons.keep_used)
    app.connect("build-finished", policy.write, priority=policy.AFTER_ALL)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def read_beside(app: Any) -> None:
    """Execute several pages at a time: they measure nothing.

    Jupyter Book has no option for that.
    """
    app.parallel = min(os.cpu_count() or 1, 4)
    # It does not say so itself: it numbers in one process, after all pages have been read.
    app.extensions["sphinx_multitoc_numbering"].parallel_read_safe = True
