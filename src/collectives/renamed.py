"""Names that algorithms had before, which rows, presets and files recorded with them still carry."""

RENAMED = {
    "exchange": "one_shot",
    "optimal": "circulant",
    "parameter_server": "two_shot",
    "root": "reduce_broadcast",
}


def current_name(algorithm: str) -> str:
    """Return the present name of an algorithm. Any other text is returned as it is.

    >>> current_name("parameter_server"), current_name("ring"), current_name("my/file.py:root")
    ('two_shot', 'ring', 'my/file.py:root')
    """
    return RENAMED.get(algorithm, algorithm)
