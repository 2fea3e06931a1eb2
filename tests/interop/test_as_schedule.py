"""Programs as schedules: proved by `verify`, with the same messages, or refused.

Held against the executor.
"""

from collections import Counter
from itertools import cycle
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from collectives.algorithms import ALGORITHMS, build, executable, takes, variants
from collectives.core.contracts import CONTRACTS
from collectives.core.interpret import run
from collectives.core.schedule import Schedule, ScheduleError
from collectives.core.traffic import traffic
from collectives.core.verify import verify
from collectives.machine import machine
from collectives.simulator.simulation import simulate
from collectives_interop import msccl
from collectives_interop.as_schedule import schedule
from collectives_interop.msccl import text as exported
from collectives_interop.prove import prove
from interop.executor import play
from interop.mutants import mutants
from interop.programs import (
    PROGRAMS,
    Block,
    all_pairs,
    chain,
    direct,
    do,
    gather_ring,
    ring,
    star,
    xml,
)


def channels(p: int, channels: int) -> str:
    """All-reduce by one ring for each channel, all in the same direction, each with a part of the buffer."""
    top = ElementTree.fromstring(ring(p))
    top.set("nchunksperloop", str(p * channels))
    for gpu in top:
        gpu.set("i_chunks", str(p * channels))
        (first,) = gpu
        for channel in range(1, channels):
            block = ElementTree.fromstring(ElementTree.tostring(first))
            block.set("id", str(channel))
            block.set("chan", str(channel))
            for step in block:
                for side in ("srcoff", "dstoff"):
                    step.set(side, str(int(step.get(side)) + p * channel))
            gpu.append(block)
    return ElementTree.tostring(top, encoding="unicode")


def doubling(p: int) -> str:
    """All-reduce by recursive doubling: what comes waits in scratch until the own sum has been sent."""
    gpus = []
    for r in range(p):
        blocks: list[Block] = []
        for t in range(p.bit_length() - 1):
            after = "" if not t else f"{t - 1}.2"
            move = [do("s", "i0", after=after), do("r", f"s{t}"), do("re", f"s{t}", "i0")]
            blocks.append((r ^ (1 << t), r ^ (1 << t), 0, move))
        gpus.append(blocks)
    return xml("allreduce", 1, gpus, scratch=p)


def two_steps(p: int) -> str:
    """All-to-all through GPU 0, which keeps what others have for others in scratch."""
    gpus: list[list[Block]] = [[(-1, -1, 0, [do("cpy", "i0", "o0")])]]
    for r in range(1, p):
        others = [q for q in range(1, p) if q != r]
        into = [do("r", f"o{r}"), *(do("r", f"s{r * p + q}") for q in others)]
        gpus[0].append((-1, r, 0, into))
        sends = [do("s", "i0"), *(do("s", f"i{q}") for q in others)]
        takes = [do("r", "o0"), *(do("r", f"o{q}") for q in others)]
        gpus.append(
            [(0, -1, 0, sends), (-1, 0, 0, takes), (-1, -1, 0, [do("cpy", f"i{r}", f"o{r}")])]
        )
    for r in range(1, p):
        others = [q for q in range(1, p) if q != r]
        out = [do("s", f"i{r}")]
        for q in others:
            at = [each for each in range(1, p) if each != q].index(r) + 1
            out.append(do("s", f"s{q * p + r}", after=f"{q}.{at}"))
        gpus[0].append((r, -1, 0, out))
    return xml("alltoall", p, gpus, scratch=p * p, in_place=False)


def relay(p: int) -> str:
    """All-reduce by passing all inputs round the ring: a GPU needs its sum and what it passes on at the same time."""
    gpus = []
    for r in range(p):
        steps = [do("s", "i0")]
        for t in range(p - 1):
            steps += [do("rcs" if t < p - 2 else "r", f"s{t}"), do("re", f"s{t}", "i0")]
        gpus.append([((r + 1) % p, (r - 1) % p, 0, steps)])
    return xml("allreduce", 1, gpus, scratch=p)


MORE = {
    "five in a ring": ring(5),
    "three channels": channels(4, 3),
    "four in pairs": all_pairs(4),
    "seven in a gather ring": gather_ring(7),
    "two in a ring": ring(2),
    "doubling": doubling(8),
    "two steps": two_steps(4),
    "all to all in place": direct("alltoall", 5, "r", False),
    "long chain": chain("reduce", 7),
    "gather": star("gather", 5),
}
RIGHT = PROGRAMS | MORE


def made(text: str) -> Schedule:
    return schedule(msccl.read(text.encode()))


def sent(text: str) -> Counter[tuple[int, int]]:
    """Messages and chunks in the text, which no code of ours has read: (sender, receiver) -> chunks."""
    top, chunks = ElementTree.fromstring(text), Counter[tuple[int, int]]()
    for gpu in top:
        for block in gpu.iter("tb"):
            for step in block:
                if step.get("type") in ("s", "rcs", "rrs", "rrcs"):
                    chunks[int(gpu.get("id")), int(block.get("send"))] += int(step.get("cnt"))
    return chunks


def messages(text: str) -> int:
    return sum(
        step.get("type") in ("s", "rcs", "rrs", "rrcs")
        for step in ElementTree.fromstring(text).iter("step")
    )


def links(of: Schedule) -> Counter[tuple[int, int]]:
    """Chunks by sender and receiver."""
    found: Counter[tuple[int, int]] = Counter()
    for step in of.steps():
        for src, dst, chunks in zip(
            step.src.tolist(), step.dst.tolist(), step.count.tolist(), strict=True
        ):
            found[src, dst] += chunks
    return found


def count(of: Schedule) -> int:
    """Messages."""
    return sum(len(step.messages().src) for step in of.steps())


def size(of: Schedule, bytes_of_a_chunk: int) -> int:
    """Bytes of the buffer, so that every chunk has as many."""
    return bytes_of_a_chunk * of.k // (of.p if of.collective == "all_to_all" else 1)


@pytest.mark.parametrize("name", RIGHT)
def test_a_program_is_a_schedule_of_the_same_messages(name: str) -> None:
    """It is proved.

    The simulator and the report of the proof count the same chunks on the same links.
    """
    text, of = RIGHT[name], made(RIGHT[name])
    verify(of)
    assert (links(of), count(of)) == (sent(text), messages(text))
    result = simulate(of, machine("textbook"), size(of, 1000))
    assert (result.messages, sum(result.bytes.values())) == (
        messages(text),
        1000 * sent(text).total(),
    )
    report, counted = prove(msccl.read(text.encode())), traffic(of, n := size(of, 1))
    assert (report.busiest_sent, report.busiest_received) == (
        counted.sent.max() / n,
        counted.received.max() / n,
    )
    assert report.busiest_link == max(sent(text).values()) / n
    assert report.least == CONTRACTS[of.collective].factor(of.p)
    if of.collective == "all_reduce":
        data = np.random.default_rng(3).integers(-(2**40), 2**40, size=(of.p, of.k, 2))
        assert (run(of, data.copy()) == data.sum(axis=0)).all()


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((1, 3, 4), id="few"),
        pytest.param((2, 5, 6, 7, 8, 12, 16), id="others", marks=pytest.mark.extended),
    ],
)
@pytest.mark.parametrize("names", executable())
def test_what_we_export_comes_back(names: tuple[str, str], ranks: tuple[int, ...]) -> None:
    """The same chunks over the same links, in as many steps if every message is of consecutive chunks."""
    for ours in (each for p in ranks for each in variants(*names, p) if not each.root):
        back = made(exported(ours, "back", "msccl-tools"))
        verify(back)
        assert (back.collective, back.p, back.k, links(back)) == (
            ours.collective,
            ours.p,
            ours.k,
            links(ours),
        )
        # The chains of several channels meet in a node's links, and the program does not say which
        # goes first.
        assert (
            back.nsteps <= ours.nsteps
            or count(back) > count(ours)
            or names[1] == "multi_channel_tree"
        )


def test_what_comes_is_added_at_once_and_scratch_is_gone() -> None:
    assert repr(list(made(doubling(2)).steps())) == "[Step(0->1:+0, 1->0:+0)]"
    ours = ALGORITHMS["all_reduce", "recursive_doubling"](8)
    assert list(map(repr, made(doubling(8)).steps())) == list(map(repr, ours.steps()))


def test_steps_are_as_early_as_the_data_allows() -> None:
    texts = ring(5), all_pairs(4), gather_ring(7), chain("broadcast", 5)
    assert [made(text).nsteps for text in texts] == [8, 2, 6, 5]
    assert made(channels(4, 3)).nsteps == 6 * 3  # three messages for one link are in three steps


def test_a_gpu_that_needs_two_sums_of_a_chunk_is_refused() -> None:
    assert play(relay(4), 0) is None
    with pytest.raises(ScheduleError) as refused:
        made(relay(4))
    assert str(refused.value) == (
        "not a schedule: GPU 1 needs several values of chunk 0 at the same time, expected one, because a rank of a "
        "schedule has one cell for a chunk: rank 3 that GPU 1, thread block 0, step 3 (rcs) sends; "
        "rank 0 that GPU 1, thread block 0, step 1 (rcs) sends; rank 1 that GPU 1, thread block 0, step 0 (s) sends"
    )


def test_what_nobody_needs_is_refused() -> None:
    move = [do("s", "i0"), do("rrc", "i0", after="1.0")]
    extra = [do("s", "i0"), do("r", "s0")]
    text = xml(
        "allreduce",
        1,
        [[(1, 1, 0, move), (1, 1, 1, extra)], [(0, 0, 0, move), (0, 0, 1, extra)]],
        scratch=1,
    )
    assert play(text, 0) is None
    with pytest.raises(
        ScheduleError, match="not a schedule: 0 values need chunk 0 of GPU 0, thread block 1"
    ):
        made(text)


def test_mutants_that_are_right_are_proved_again_or_refused() -> None:
    sources = cycle([mutants(text, seed) for seed, text in enumerate(PROGRAMS.values())])
    tried = Counter[str]()
    while tried.total() < 150:
        text = next(next(sources))
        try:
            of = made(text)
        except ScheduleError as error:
            tried["refused" if "not a schedule" in str(error) else "wrong"] += 1
        except ValueError:
            continue
        else:
            assert play(text, tried.total()) is None
            verify(of)
            assert int(traffic(of, size(of, 1)).messages_sent.sum()) == messages(text)
            tried["right"] += 1
    assert tried["right"] >= 10
    assert tried["wrong"] >= 50


def test_a_file_is_accepted_where_an_algorithm_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    file.write_text(ring(4))
    assert list(map(repr, build("all_reduce", str(file), 4).steps())) == list(
        map(repr, made(ring(4)).steps())
    )
    with pytest.raises(ValueError, match=r"ring.xml is all_reduce on 4 ranks, not all_gather on 4"):
        build("all_gather", str(file), 4)
    with pytest.raises(ValueError, match=r"ring.xml is all_reduce on 4 ranks, not all_reduce on 3"):
        build("all_reduce", str(file), 3)
    assert not takes("all_reduce", str(file), "root")
    file.write_text(ring(3).replace('type="rrcs"', 'type="rcs"', 1))
    with pytest.raises(ScheduleError, match=r"ring.xml: wrong result: GPU 0, chunk 1"):
        build("all_reduce", str(file), 3)
    with pytest.raises(ValueError, match=r"none.xml: there is no such file"):
        build("all_reduce", str(tmp_path / "none.xml"), 4)


def test_a_program_has_the_root_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "chain.xml"
    file.write_text(chain("broadcast", 3))
    assert build("broadcast", str(file), 3, root=0).root == 0
    with pytest.raises(ValueError, match=r"root of .*chain.xml: got 1, expected 0"):
        build("broadcast", str(file), 3, root=1)
