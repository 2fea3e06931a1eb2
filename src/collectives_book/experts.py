"""Mixtures of experts: how many copies of a token leave its node, how long they take, and how uneven the load is.

Tokens choose their experts at random (10,000 of them, always the same), so a count is right to
about 1%. The nodes of a pod have equally many GPUs, and these equally many experts, in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

TOKENS = 10_000
# Random places of the experts, of which `loads` takes the median.
PLACES = 25


class Layer(NamedTuple):
    """A layer of experts on a pod of GPUs, by default that of DeepSeek-V3 on 64 H100.

    An expert has three matrices of ``width`` times ``hidden``. A token goes to ``top`` experts on
    at most ``limit`` nodes. ``tokens`` is the number on each GPU; ``dispatch`` and ``combine`` are
    bytes of a number. ``port`` is in bytes a second each way, ``rate`` in operations a second of a
    GPU. Where a node has one GPU, it is the unit that counts.
    """

    experts: int = 256
    top: int = 8
    width: int = 7168
    hidden: int = 2048
    tokens: int = 4096
    nodes: int = 8
    gpus: int = 8
    limit: int = 4
    dispatch: float = 1
    combine: float = 2
    port: float = 50e9
    rate: float = 800e12


def choose(layer: Layer, limit: int, popularity: Any = 1.0) -> NDArray[np.int64]:
    """Return the experts of each token, all from the ``limit`` nodes whose two best experts score highest.

    An array of `TOKENS` times ``top``. ``popularity`` is proportional to how often an expert would
    be chosen first.
    """
    score = np.random.default_rng(0).gumbel(size=(TOKENS, layer.experts)) + np.log(popularity)
    by_node = score.reshape(
        TOKENS,
        layer.nodes,
        -1,
    )
    best = np.sort(by_node, axis=2)[..., -2:].sum(axis=2)
    left_out = np.argsort(best, axis=1)[:, : layer.nodes - limit]
    np.put_along_axis(
        by_node,
        left_out[..., None],
        -np.inf,
        axis=1,
    )
    return np.argsort(score, axis=1)[:, -layer.top :]


def copies(layer: Layer) -> dict[str, float]:
    """Return how many copies of a token leave node 0, by what gets one: each expert, each GPU or each node.

    The last entry is for each node where the router takes at most ``limit`` nodes.

    >>> {what: round(count, 1) for what, count in copies(Layer()).items()}
    {'for each expert': 7.0, 'for each GPU': 6.7, 'for each node': 4.6, 'of at most 4': 3.5}
    """
    _check(layer)
    anywhere = choose(layer, layer.nodes)
    gpu = anywhere * layer.nodes * layer.gpus // layer.experts
    near = choose(layer, min(layer.limit, layer.nodes))
    return {
        "for each expert": _leaving(anywhere, layer.experts // layer.nodes),
        "for each GPU": _leaving(gpu, layer.gpus),
        "for each node": _leaving(_node(layer, anywhere), 1),
        f"of at most {layer.limit}": _leaving(_node(layer, near), 1),
    }


def _node(layer: Layer, experts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nodes of experts."""
    return experts * layer.nodes // layer.experts


def _check(layer: Layer) -> None:
    """Raise ValueError if the experts cannot be spread evenly, or a token has too few to choose from."""
    gpus = layer.nodes * layer.gpus
    if layer.experts % gpus:
        raise ValueError(f"experts: got {layer.experts}, expected a multiple of {gpus} GPUs")
    near = min(layer.limit, layer.nodes) * layer.experts // layer.nodes
    if not 0 < layer.top <= near:
        raise ValueError(f"top: got {layer.top}, expected 1 to {near}, the experts of limit nodes")


def _leaving(places: NDArray[np.int64], own: int) -> float:
    """Return how many different places a token goes to, except for the first ``own`` ones."""
    places = np.sort(places, axis=1)
    is_new = (
        np.diff(
            places,
            axis=1,
            prepend=-1,
        )
        > 0
    )
    return float((is_new & (places >= own)).sum() / len(places))


def times(**changed: float) -> pd.DataFrame:
    """Return copies of a token, and milliseconds of dispatch, combine and experts, by what gets a copy.

    ``changed`` are fields of `Layer`. *exposed* is what the experts of another micro-batch cannot
    hide. Raises ValueError for experts that cannot be spread evenly.

    >>> times().round(1).exposed.tolist()
    [8.7, 8.2, 4.6, 2.5]
    """
    layer = Layer(**changed)  # type: ignore[arg-type]
    counted = pd.Series(copies(layer))
    sent = counted * layer.tokens * layer.width / layer.port * 1e3
    operations = layer.tokens * layer.top * 3 * 2 * layer.width * layer.hidden
    computing = operations / layer.rate * 1e3
    columns = {
        "copies": counted,
        "dispatch": sent * layer.dispatch,
        "combine": sent * layer.combine,
        "experts": computing,
        "exposed": (sent * (layer.dispatch + layer.combine) - computing).clip(0),
    }
    return pd.DataFrame(columns).rename_axis("a copy")


def routings(layer: Layer) -> dict[str, NDArray[np.float64]]:
    """Return the popularity of each expert by three routings: even, Zipf's, and four hot experts."""
    place = np.arange(layer.experts)
    return {
        "uniform": np.ones(layer.experts),
        "Zipf": 1 / (1 + place),
        "four hot": np.where(
            place < 4,
            1 / 16,
            3 / 4 / (layer.experts - 4),
        ),
    }


def loads(**changed: float) -> pd.DataFrame:
    """Return by routing what the busiest port receives and the busiest GPU computes, over the mean.

    ``changed`` are fields of `Layer`. Each node gets one copy of a token, on the rail of the GPU
    that has the token. Experts lie anywhere: medians of `PLACES` random places. Raises ValueError
    as `times` does.

    >>> loads().round(1).loc["Zipf"].tolist()
    [1.4, 6.7]
    """
    layer = Layer(**changed)  # type: ignore[arg-type]
    _check(layer)
    random = np.random.default_rng(1)
    places = [random.permutation(layer.experts) for _ in range(PLACES)]
    lines = {}
    for name, popularity in routings(layer).items():
        chosen = choose(
            layer,
            layer.nodes,
            popularity,
        )
        found = [_loads(layer, place[chosen]) for place in places]
        lines[name] = np.median(found, axis=0)
    names = ["busiest port ÷ mean", "busiest GPU ÷ mean"]
    return pd.DataFrame.from_dict(
        lines,
        "index",
        columns=names,
    )


def _loads(layer: Layer, chosen: NDArray[np.int64]) -> tuple[float, float]:
    """Return both loads where these experts are chosen, in the order of their GPUs."""
    gpus = layer.nodes * layer.gpus
    home = (np.arange(TOKENS) % gpus)[:, None]
    node = np.sort(_node(layer, chosen), axis=1)
    is_first = (
        np.diff(
            node,
            axis=1,
            prepend=-1,
        )
        > 0
    )
    is_sent = is_first & (node != home // layer.gpus)
    port = node * layer.gpus + home % layer.gpus
    received = np.bincount(port[is_sent], minlength=gpus)
    gpu = chosen * gpus // layer.experts
    computed = np.bincount(gpu.ravel(), minlength=gpus)
    return (
        received.max() / received.mean(),
        computed.max() / computed.mean(),
    )
