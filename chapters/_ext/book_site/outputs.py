"""Notebooks beside the site have the outputs of their page: myst-nb merges those of its cache into a copy alone."""

from myst_nb.core.execute.cache import NotebookClientCache

_start_client = NotebookClientCache.start_client


def keep() -> None:
    """Have the notebook that is written get what the cache has."""
    NotebookClientCache.start_client = start_client


def start_client(client: NotebookClientCache) -> None:
    """Start as myst-nb does, then put the outputs into the notebook that its caller has."""
    given = client.notebook
    _start_client(client)
    if client.notebook is not given:
        given.cells, given.metadata = client.notebook.cells, client.notebook.metadata
        client._notebook = given
