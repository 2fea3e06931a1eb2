"""Bounds that no single cut sets: all-to-all and all-reduce on a graph of links, as linear programs over flows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_array, coo_array, eye_array

from collectives.topology.graph import Graph

# A program's result is rounded to the nearest fraction of at most this denominator, and has to be as near as that.
MOST_DENOMINATOR, NEAR = 10_000, 1e-8

# Variables of a program; with as many it takes ten seconds.
MOST_FLOWS = 16_000


def all_to_all_units(of: Graph) -> Fraction:
    """The least time of an all-to-all in units of n / `Graph.unit`: every rank has n / p bytes for each other one.

    A flow from each rank carries its p - 1 pieces. The most that all flows can be scaled by, within the capacities, is
    the inverse of the time. Cost: a linear program of p * links variables; 16 ranks 0.1 s.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> all_to_all_units(graph(machine("mesh:2x2")))  # 2 pieces to neighbours and 1 over two links: 16 hops, 8 links
    Fraction(1, 2)
    """
    p, n = of.p, of.vertices
    _need_few(of, p)
    links, balance = _links(of), _balance(of)
    flows = block_array([[balance if i == j else None for j in range(p)] for i in range(p)], format="csr")
    wants = np.zeros((p, n))
    wants[:, :p] = 1.0
    wants[range(p), range(p)] = -(p - 1.0)
    equal = block_array([[flows, coo_array(-wants.reshape(-1, 1))]], format="csr")
    most = block_array([[*[eye_array(len(links)) for _ in range(p)], coo_array((len(links), 1))]], format="csr")
    limits = of.capacity[links[:, 0], links[:, 1]]
    rate = _maximum(equal, np.zeros(p * n), most, limits)
    return _nearest(1 / (rate * p))


def all_reduce_units(of: Graph) -> Fraction:
    """The least time of an all-reduce by trees in units of n / `Graph.unit`.

    Parts of the buffer are reduced along trees to some ranks and sent on along other trees, at the same time. Each link
    divides its capacity between the two; each part of a rank must reach all others within it, and be reached by all.
    Cost: a linear program of 2 * p * links variables; 16 ranks 1 s.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> all_reduce_units(graph(machine("dgx1")))
    Fraction(7, 24)
    """
    p, n, links = of.p, of.vertices, _links(of)
    _need_few(of, 2 * p)
    e, balance = len(links), _balance(of)
    # Variables: flows to each rank, flows from each rank, the share of each link for the former, rates of roots, total.
    blocks: list[list[Any]] = []
    for v in range(2 * p):
        roots, total = coo_array((np.ones(p), (np.arange(p), np.arange(p))), shape=(n, p)), np.zeros((n, 1))
        total[v % p] = -1.0 if v < p else 1.0
        row: list[Any] = [None] * (2 * p) + [None, roots if v < p else -roots, coo_array(total)]
        row[v] = balance
        blocks.append(row)
    # A switch copies nothing and adds nothing: as much leaves it as comes in, in either half.
    blocks.append([*[coo_array((n - p, e))] * (2 * p), balance.tocsr()[p:], coo_array((n - p, p)), None])
    equal = block_array(blocks, format="csr")
    ones, nothing = eye_array(e), coo_array((e, p + 1))
    limited = [
        [*[ones if i == v else (coo_array((e, e)) if v == 0 else None) for i in range(2 * p)], sign * ones, nothing]
        for v, sign in ((v, -1.0 if v < p else 1.0) for v in range(2 * p))
    ]
    most = block_array(limited, format="csr")
    capacity = of.capacity[links[:, 0], links[:, 1]].astype(float)
    limits = np.concatenate([np.zeros(p * e), np.tile(capacity, p)])
    return _nearest(1 / _maximum(equal, np.zeros(equal.shape[0]), most, limits))


def _need_few(of: Graph, flows: int) -> None:
    got = flows * len(_links(of))
    if got > MOST_FLOWS:
        raise ValueError(f"flows over the links of {of.name}: got {got:,}, expected at most {MOST_FLOWS:,}")


def _links(of: Graph) -> Any:
    return np.argwhere(of.capacity > 0)


def _balance(of: Graph) -> Any:
    """By vertex and link: 1 where the link comes in, -1 where it goes out."""
    links = _links(of)
    e, at = len(links), np.arange(len(links))
    values = np.repeat([1.0, -1.0], e)
    return coo_array((values, (np.concatenate([links[:, 1], links[:, 0]]), np.tile(at, 2))), shape=(of.vertices, e))


def _maximum(equal: Any, values: Any, most: Any, limits: Any) -> float:
    """The largest value of the last variable. Limits are scaled to 1, because solvers round large numbers."""
    goal, unit = np.zeros(equal.shape[1]), float(limits.max())
    goal[-1] = -1.0
    found = linprog(goal, A_ub=most, b_ub=limits / unit, A_eq=equal, b_eq=values, method="highs")
    if not found.success:
        raise RuntimeError(f"linear program of a bound: {found.message}")
    return float(-found.fun) * unit


def _nearest(value: float) -> Fraction:
    found = Fraction(value).limit_denominator(MOST_DENOMINATOR)
    if abs(found - Fraction(value)) > NEAR * value:
        raise RuntimeError(f"linear program of a bound: got {value!r}, expected a fraction of small numbers")
    return found
