"""Machines: ranks on nodes, and links of several classes between them.

A machine is a YAML file. The presets in ``machines/`` are such files, with their sources. With
``links``, ``inside`` is one link of a node, and ``network`` a port to the network's switches, which
one node alone does not need; a message takes the shortest way. All fields:

    name: two-rooms
    source: where the numbers come from
    ranks_per_node: 8             # ranks fill the nodes in order
    ports_per_node: 1             # network ports that a node's ranks share; left out: one a rank
    inside:                       # between two ranks of a node; needed above 1 rank a node
      latency: 1us                # from the last byte's leaving to its arrival; occupies nothing
      overhead: 0us               # the ports of both ranks are occupied for overhead + bytes / rate
      rate: 250GB/s
    network: {latency: 4us, overhead: 1us, rate: 25GB/s}    # between nodes; the rate is a port's
    levels:                       # of the network, if any, from below: what leaving a group costs
      - name: rack
        nodes: 16                 # in a group
        latency: 1us              # further latency
        rate: 20GB/s              # of one message at most; left out: the port's
        uplink: 200GB/s           # shared by all that leaves the group, and by all that enters it;
                                  # left out: no limit
    call: 5us                     # once a call, whatever is sent: the launch of a kernel
    fastest_protocol: true        # all messages of a call take the protocol in which the call ends
                                  # first, as in NCCL; of those that name the algorithm, if any do.
                                  # Left out: each message takes the first that fits
    protocols:                    # if any: how messages are sent; otherwise the links as above
      - name: LL
        algorithms: [ring]        # left out: all algorithms
        up_to: 64K                # bytes of a message; left out: any
        buffer_up_to: 1M          # bytes of the whole buffer; left out: any
        startup: 10us             # once, before anything is sent
        share: 0.5                # of every link's rate
        network_share: 0.8        # of the network's rates; left out: share
        inside: {latency: 0.5us, overhead: 0us}
        network: {latency: 2us, overhead: 1us}
    slower: {3: 16}               # nodes, if any, through whose network ports a byte takes longer
    links:                        # one by one, if two classes are not enough (`LinkTable`)
      matrix: [[0, 2], [2, 0]]    # links from each rank of a node to each other; then switches
      pairs: [[0, 1, 2]]          # the same as [from, to, number], in place of a matrix
      switches: 0                 # of a node
      rails: 0                    # switches that join nodes: rank r has a port to switch r % rails
      egress: [1]                 # ranks of a node with a port to the network; left out: all
      ingress: [0]                # ranks of a node with a port from it; left out: all
      places: [[0, 0], [1, 0]]    # in a picture: x, and y downwards, both from 0 to 1
    gamma: 0                      # seconds to reduce a byte
    version: 1                    # of this format, `collectives.schemas`; left out: 1
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from collectives.config import (
    FILE,
    AlgorithmName,
    Bytes,
    Count,
    Rate,
    Seconds,
    StrictModel,
    parse_yaml,
    read_yaml,
)
from collectives.errors import explain, short, unknown
from collectives.renamed import current_name
from collectives.schemas import VERSION, version_of

MAX_VERTICES = 1024
LATTICES = ("mesh:", "torus:")
Multiple = Annotated[int, Field(ge=0, le=1 << 20, strict=True)]
Vertex = Annotated[int, Field(ge=0, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]


class Delay(StrictModel):
    """The cost of a message independent of its size, in seconds: LogGP's L and o."""

    latency: Seconds = 0.0
    overhead: Seconds = 0.0


class Link(Delay):
    """A class of links: a message of m bytes occupies both ports for overhead + m / rate and arrives latency later."""

    rate: Rate

    @property
    def beta(self) -> float:
        """Return the seconds per byte."""
        return 1 / self.rate

    @property
    def alpha(self) -> float:
        """Return the textbook's start-up time of a message in seconds: overhead + latency."""
        return self.overhead + self.latency


class Level(StrictModel):
    """One level of the network: groups of nodes, and what a message that leaves its group meets."""

    name: str
    nodes: Count
    latency: Seconds = 0.0
    rate: Rate | None = None
    uplink: Rate | None = None


class Protocol(StrictModel):
    """A way of a library to send messages of some sizes for some algorithms, such as NCCL's LL and Simple."""

    name: str
    algorithms: tuple[AlgorithmName, ...] | None = None
    up_to: Bytes | None = None
    buffer_up_to: Bytes | None = None
    startup: Seconds = 0.0
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    network_share: Annotated[float, Field(gt=0, le=1)] | None = None
    inside: Delay = Delay()
    network: Delay = Delay()

    @property
    def of_network(self) -> float:
        """Return the share of the network's rates."""
        return self.share if self.network_share is None else self.network_share

    def fits(self, algorithm: str | None, n: int) -> bool:
        """Tell if the protocol is for this algorithm and a buffer of n bytes.

        None needs one for all algorithms.
        """
        is_named = self.algorithms is None or current_name(algorithm or "") in self.algorithms
        return is_named and (self.buffer_up_to is None or n <= self.buffer_up_to)


class LinkTable(StrictModel):
    """The number of parallel links from each vertex of a node to each other.

    The vertices of a node are its ranks, then its switches. Row ``a``, column ``b`` of ``matrix``
    is the number of links from a to b; ``pairs`` are the same as (a, b, number). With ``rails``,
    nodes are joined: rank r of every node has a port to switch ``r % rails`` of the network.
    ``egress`` and ``ingress`` are the ranks of a node that have such a port, all if left out.
    ``places`` are the vertices' x and y in a picture, from 0 to 1, y downwards.

    >>> LinkTable(pairs=[(0, 1, 2), (1, 0, 1)]).counted(2)
    [(0, 1, 2), (1, 0, 1)]
    """

    matrix: tuple[tuple[Multiple, ...], ...] = ()
    pairs: tuple[tuple[Vertex, Vertex, Multiple], ...] = ()
    switches: Annotated[int, Field(ge=0, strict=True)] = 0
    rails: Annotated[int, Field(ge=0, strict=True)] = 0
    egress: tuple[Vertex, ...] | None = None
    ingress: tuple[Vertex, ...] | None = None
    places: tuple[tuple[Share, Share], ...] = ()

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.matrix) == bool(self.pairs):
            raise ValueError(
                f"links: got {'both' if self.pairs else 'neither'}, expected a matrix or pairs"
            )
        if not self.rails and (self.egress is not None or self.ingress is not None):
            raise ValueError("egress and ingress of a network: got rails 0, expected 1 or more")
        return self

    def counted(self, ranks: int) -> list[tuple[int, int, int]]:
        """Check the links of a node of ``ranks`` ranks and return them as (from, to, number).

        Raises ValueError for a matrix of another size, a vertex that is not there, a link from a
        vertex to itself, a pair that is given twice, and a switch that sends and receives at
        different rates.
        """
        n = ranks + self.switches
        _check(
            n <= MAX_VERTICES,
            f"links: got {n:,} ranks and switches, expected at most {MAX_VERTICES:,}",
        )
        _check(len(self.places) in (0, n), f"places: got {len(self.places)}, expected {n}")
        sizes = {len(self.matrix), *map(len, self.matrix)}
        _check(
            not self.matrix or sizes == {n},
            f"matrix of links: got rows and columns {' and '.join(map(str, sorted(sizes)))}, expected {n}",
        )
        for name in ("egress", "ingress"):
            for r in getattr(self, name) or ():
                _check(r < ranks, f"{name} of the network: got rank {r}, expected 0 to {ranks - 1}")
        found: dict[tuple[int, int], int] = {}
        for a, b, count in self._given():
            _check(
                max(a, b) < n,
                f"link from {a} to {b}: got no such rank or switch, expected 0 to {n - 1}",
            )
            _check(a != b or not count, f"link from {a} to itself: got {count}, expected 0")
            _check((a, b) not in found, f"link from {a} to {b}: got it twice, expected once")
            found[a, b] = count
        for switch in range(ranks, n):
            out, into = (
                sum(count for ends, count in found.items() if ends[i] == switch) for i in (0, 1)
            )
            _check(
                out == into,
                f"links of switch {switch}: got {into} in and {out} out, expected as many",
            )
        return [(a, b, count) for (a, b), count in found.items() if count]

    def _given(self) -> Iterator[tuple[int, int, int]]:
        yield from self.pairs
        yield from (
            (a, b, count)
            for a, row in enumerate(self.matrix)
            for b, count in enumerate(row)
            if count
        )

    def ports(self, ranks: int) -> tuple[list[int], list[int]]:
        """Return the ranks of a node with a port out to the network, and those with a port in."""
        return [*range(ranks)] if self.egress is None else [*self.egress], (
            [*range(ranks)] if self.ingress is None else [*self.ingress]
        )


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


class Machine(StrictModel):
    """Ranks on nodes and the links between them; the module's docstring explains every field.

    >>> Machine(name="textbook", network=Link(overhead="5us", rate="25GB/s")).network.alpha
    5e-06
    """

    name: str
    source: str = ""
    ranks_per_node: Count = 1
    ports_per_node: Count | None = None
    inside: Link | None = None
    network: Link
    levels: tuple[Level, ...] = ()
    call: Seconds = 0.0
    fastest_protocol: bool = False
    protocols: tuple[Protocol, ...] = ()
    slower: dict[
        Annotated[int, Field(ge=0)], Annotated[float, Field(ge=1, allow_inf_nan=False)]
    ] = Field(default={})
    links: LinkTable | None = None
    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _one_node(cls, given: Any) -> Any:
        """Take the inner links for the network if there are links and no network, because there is one node then."""
        if (
            isinstance(given, dict)
            and given.get("links")
            and "network" not in given
            and "inside" in given
        ):
            return given | {"network": given["inside"]}
        return given

    @model_validator(mode="after")
    def _wired(self) -> Self:
        if self.links:
            other = [
                name
                for name in ("ports_per_node", "levels", "protocols", "slower")
                if getattr(self, name)
            ]
            if other:
                raise ValueError(f"a machine with links: got {' and '.join(other)}, expected none")
            if self.inside is None:
                raise ValueError("the link 'inside' is missing: a machine with links needs one")
            self.links.counted(self.ranks_per_node)
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.ranks_per_node > 1 and self.inside is None:
            raise ValueError(
                f"the link 'inside' is missing: nodes of {self.ranks_per_node} ranks need one"
            )
        if self.ranks_per_node % self.ports:
            raise ValueError(
                f"uneven ports: got {self.ports} for {self.ranks_per_node} ranks, expected a divisor"
            )
        if self.fastest_protocol and any(each.up_to for each in self.protocols):
            raise ValueError(
                "a protocol for a whole call: got a limit up_to of a message, expected none"
            )
        sizes = [1, *(level.nodes for level in self.levels)]
        if any(large <= small or large % small for small, large in pairwise(sizes)):
            raise ValueError(
                f"invalid levels: got groups of {sizes[1:]} nodes, expected each a multiple of the one before"
            )
        return self

    @property
    def ports(self) -> int:
        """Return the number of network ports of a node."""
        return self.ports_per_node or self.ranks_per_node

    @property
    def has_adding_switches(self) -> bool:
        """Tell if switches add inside nodes: a protocol is for `nvls_tree`."""
        return any("nvls_tree" in (protocol.algorithms or ()) for protocol in self.protocols)

    def protocols_for(self, algorithm: str | None, n: int) -> tuple[Protocol, ...]:
        """Return the protocols for an algorithm and a buffer of n bytes, in their order, and last the plain links."""
        plain = Protocol(
            name="", inside=_delay(self.inside or self.network), network=_delay(self.network)
        )
        return (*(protocol for protocol in self.protocols if protocol.fits(algorithm, n)), plain)

    def choices(self, algorithm: str | None, n: int) -> tuple[tuple[Protocol, ...], ...]:
        """Return the sets of protocols of which a call takes the fastest: each alone, or all by a message's size.

        Where each stands alone, those that name the algorithm come before those for all.
        """
        protocols = self.protocols_for(algorithm, n)
        if not self.fastest_protocol:
            return (protocols,)
        fitting = protocols[:-1] or protocols
        named = [protocol for protocol in fitting if protocol.algorithms is not None]
        return tuple((protocol,) for protocol in named or fitting)


def _delay(link: Link) -> Delay:
    return Delay(latency=link.latency, overhead=link.overhead)


def presets() -> list[str]:
    """Return the names of the machines that come with the package.

    >>> presets()[-2:]
    ['summit', 'textbook']
    """
    return sorted(
        path.name.removesuffix(".yaml")
        for path in _folder().iterdir()
        if path.name.endswith(".yaml")
    )


def machine(name: str) -> Machine:
    """Return a preset by name, the machine in a file ``NAME.yaml``, or one link as "LATENCY,RATE".

    A mesh or torus is ``mesh:5x5`` or ``torus:4x4x4``, of links of 1 us and 50 GB/s, or of others
    as ``mesh:5x5,LATENCY,RATE``.

    Raises ValueError for an unknown name, a missing file and invalid fields; the message is one
    line.

    >>> machine("summit").ranks_per_node
    6
    >>> machine("5ms,25MB/s").network.alpha
    0.005
    >>> machine("torus:4x4").ranks_per_node
    16
    """
    if name.startswith(LATTICES):
        return _parse_machine(lattice_fields(name), name)
    if name in presets():
        return _parse_machine(parse_yaml((_folder() / f"{name}.yaml").read_bytes(), name), name)
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise ValueError(f"there is no machine file {name}")
        return _parse_machine(read_yaml(Path(name)), name)
    if "," in name:
        latency, _, rate = name.partition(",")
        return _parse_machine({"name": name, "network": {"latency": latency, "rate": rate}}, name)
    raise ValueError(
        f"{unknown('machine', name, presets())}, files NAME.yaml, LATENCY,RATE, mesh:5x5 and torus:4x4"
    )


def lattice(sizes: tuple[Count, ...], wraps: bool) -> LinkTable:
    """Return a mesh of these sizes, or a torus with ``wraps``, whose neighbours on every axis have a link each way.

    Ranks are numbered with the last axis fastest. An axis of two ranks has one link each way, also
    in a torus.

    >>> [len(lattice((3, 3), wraps).pairs) for wraps in (False, True)]
    [24, 36]
    """
    places = {place: r for r, place in enumerate(product(*(range(size) for size in sizes)))}
    pairs: dict[tuple[int, int], int] = {}
    for place, r in places.items():
        for axis, size in enumerate(sizes):
            for way in (1, -1):
                at = place[axis] + way
                other = (*place[:axis], at % size if wraps else at, *place[axis + 1 :])
                if other != place and other in places:
                    pairs[r, places[other]] = 1
    whole = tuple((a, b, count) for (a, b), count in pairs.items())
    if len(sizes) != 2:
        return LinkTable(pairs=whole)
    down, right = (max(1, size - 1) for size in sizes)
    return LinkTable(pairs=whole, places=tuple((x / right, y / down) for y, x in places))


def lattice_fields(name: str) -> dict[str, Any]:
    """Return the fields of the machine that is named ``mesh:5x5``, or ``torus:4x4,LATENCY,RATE``.

    Raises ValueError for sizes that are no positive whole numbers, and outside 2 to 1,024 ranks.

    >>> lattice_fields("mesh:2x2")["inside"]
    {'latency': '1us', 'rate': '50GB/s'}
    """
    shape, _, link = name.partition(",")
    kind, _, axes = shape.partition(":")
    latency, _, rate = (link or "1us,50GB/s").partition(",")
    sizes = tuple(int(size) for size in axes.split("x") if size.isdecimal() and len(size) < 10)
    if len(sizes) != 1 + axes.count("x") or min(sizes) < 1 or not 2 <= prod(sizes) <= MAX_VERTICES:
        raise ValueError(
            f"size of a {kind}: got {short(axes)}, expected such as 4x4, of 2 to {MAX_VERTICES:,} ranks"
        )
    return {
        "name": name,
        "ranks_per_node": prod(sizes),
        "inside": {"latency": latency, "rate": rate},
        "links": lattice(sizes, wraps=kind == "torus"),
    }


def _folder() -> Any:
    return resources.files("collectives") / "machines"


def _parse_machine(given: Any, name: str) -> Machine:
    if not isinstance(given, dict):
        raise ValueError(
            f"machine {name}: got no fields, expected some, such as name, network and ranks_per_node"
        )
    version_of(given, f"machine {name}", unsaid=VERSION)
    try:
        return Machine.model_validate(
            {of: value for of, value in given.items() if of != "version"}, context=FILE
        )
    except ValidationError as error:
        raise ValueError(f"machine {name}: {explain(error)}") from None


def text(of: Machine) -> str:
    """Return the machine as YAML that `machine` reads back equal, without the fields that have their default.

    >>> print(text(Machine(name="mine", network=Link(latency=5e-6, rate=25e9))), end="")
    name: mine
    network: {latency: 5us, rate: 25GB/s}
    """
    fields = of.model_dump(mode="json", exclude_defaults=True)
    # Unicode is escaped, because YAML reads a next-line character as a line break.
    return yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=float("inf"))
