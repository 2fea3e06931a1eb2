"""Reading MSCCL XML: both dialects, and one clear line for every file that is no program."""

import re
import sys
from pathlib import Path

import pytest

from collectives_interop import msccl
from collectives_interop.prove import Report, prove
from command import finished
from interop.programs import PROGRAMS, chain, do, gather_ring, ring, xml

RING = ring(3)
BOMB = '<!DOCTYPE a [<!ENTITY b "xxxxxxxxxx"><!ENTITY c "&b;&b;&b;&b;">]><algo>&c;</algo>'
FILE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><algo>&b;</algo>'


def test_the_dialect_of_msccl_tools_leaves_attributes_out() -> None:
    program = msccl.read(RING.encode())
    assert (program.collective, program.p, program.whole, program.modes) == (
        "all_reduce",
        3,
        3,
        (True,),
    )
    assert msccl.read(gather_ring(3).encode()).modes == (False,)


def test_the_dialect_of_rccl_says_where_it_works() -> None:
    text = RING.replace(
        "<algo ", '<algo minBytes="0" maxBytes="100" outofplace="0" redop="sum" ', 1
    )
    assert prove(msccl.read(text.encode())).messages == 12
    assert msccl.read(RING.replace("<algo ", '<algo outofplace="1" ', 1).encode()).modes == (
        True,
        False,
    )


def test_a_thread_block_without_peers_needs_no_channel() -> None:
    alone = [(-1, -1, -1, [do("cpy", "i0", "o0")])]
    assert report_of(xml("broadcast", 1, [alone], in_place=False)).messages == 0
    with pytest.raises(ValueError, match="chan: got '-1', expected a whole number from 0"):
        msccl.read(RING.replace('chan="0"', 'chan="-1"', 1).encode())


def report_of(text: str) -> Report:
    return prove(msccl.read(text.encode()))


def test_every_collective_has_both_names() -> None:
    text = PROGRAMS["reduce_scatter"]
    assert msccl.read(text.encode()) == msccl.read(
        text.replace("reduce_scatter", "reducescatter").encode()
    )
    roots = {
        name: msccl.read(PROGRAMS[name].encode()).root for name in ("broadcast", "gather", "ring")
    }
    assert roots == {"broadcast": 0, "gather": 0, "ring": None}


def test_gpus_may_come_in_any_order() -> None:
    head, *gpus = RING.replace("</algo>", "").split("<gpu ")
    text = head + "".join(f"<gpu {gpu}" for gpu in reversed(gpus)) + "</algo>"
    assert prove(msccl.read(text.encode())) == prove(msccl.read(RING.encode()))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<algo", "<algorithm", "not XML: mismatched tag"),
        ("</algo>", "", "not XML: no element found"),
        (
            'coll="allreduce"',
            'coll="custom"',
            "coll: got 'custom', expected one of allreduce, allgather",
        ),
        ('coll="allreduce"', "", "<algo>: got no attribute coll"),
        (
            'ngpus="3"',
            'ngpus="4"',
            "ids of <gpu>: got 3 and none for GPU [3], expected 0 to 3 once each",
        ),
        (
            'ngpus="3"',
            'ngpus="99999999"',
            "ngpus: got '99999999', expected a whole number from 1 to 1,024",
        ),
        ('ngpus="3"', 'ngpus="3.0"', "ngpus: got '3.0', expected a whole number"),
        ('inplace="1"', 'inplace="0" outofplace="0"', "inplace and outofplace: got 0 and 0"),
        ('proto="Simple"', 'proto="Fast"', "proto: got 'Fast', expected one of Simple, LL, LL128"),
        ('gpu id="2"', 'gpu id="3"', "line 1: id: got '3', expected a whole number from 0 to 2"),
        ('send="1"', 'send="7"', "send: got '7', expected a whole number from -1 to 2"),
        ('send="1"', 'send="0"', "send and recv of GPU 0: got its own id"),
        (
            'send="1"',
            'send="-1"',
            "send of the thread block: got -1, expected a peer for the step s",
        ),
        ('srcoff="0"', 'srcoff="3"', "got cells 3 to 3 of i, expected cells of its 3"),
        ('cnt="1"', 'cnt="2000000000"', "cnt: got '2000000000'"),
        ('cnt="1"', 'cnt="0"', "cnt: got '0', expected a whole number from 1"),
        ('type="rrs"', 'type="rss"', "type: got 'rss', expected one of s, r, rcs"),
        ('srcbuf="i"', 'srcbuf="x"', "srcbuf: got 'x', expected one of i, o, s"),
        (
            'depid="-1" deps="-1"',
            'depid="5" deps="0"',
            "got thread block 5, step 0, expected a step of GPU 0",
        ),
        (
            'depid="-1" deps="-1"',
            'depid="0" deps="2"',
            "hasdep of thread block 0, step 2: got 0, expected 1",
        ),
        ('step s="1"', 'step s="2"', "s: got '2', expected a whole number from 1 to 1"),
        ("<step ", "<stop/><step ", "in <tb>: got <stop>, expected <step>"),
        (
            "<step ",
            "<step><step><step/></step></step><step ",
            "depth of <step>: got 5, expected at most 4",
        ),
        (
            'name="test"',
            f'name="{"x" * 300}"',
            "an attribute of <algo>: got more than 200 characters",
        ),
    ],
)
def test_a_bad_file_gets_one_line(old: str, new: str, message: str) -> None:
    assert old in RING
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        msccl.read(RING.replace(old, new, 1).encode())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [BOMB, FILE, "<!DOCTYPE algo><algo/>"])
def test_entities_are_never_expanded(text: str) -> None:
    with pytest.raises(
        ValueError, match="line 1: got a document type or an entity, expected elements alone"
    ):
        msccl.read(text.encode())


def test_a_huge_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msccl, "MAX_BYTES", 1000)
    monkeypatch.setattr(msccl, "MAX_ELEMENTS", 10)
    (tmp_path / "a.xml").write_text(RING)
    with pytest.raises(ValueError, match="got more than 1,000 bytes"):
        msccl.read(tmp_path / "a.xml")
    with pytest.raises(ValueError, match="elements: got more than 10"):
        msccl.read(RING.encode())
    with pytest.raises(ValueError, match="there is no such file"):
        msccl.read(tmp_path / "b.xml")


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff", b"\xff\xfe<\x00", b"<algo", "<algo é/>".encode("latin1"), b"[]"]
)
def test_what_is_not_xml_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not XML: "):
        msccl.read(data)


def test_a_connection_has_one_thread_block_at_each_end() -> None:
    sends = [(1, -1, 0, [do("s", "i0")])] * 2
    text = xml("allreduce", 1, [sends, [(-1, 0, 0, [do("r", "i0"), do("r", "i0")])]])
    with pytest.raises(
        ValueError, match="GPU 0: got 2 thread blocks with send 1 on channel 0, expected one"
    ):
        msccl.read(text.encode())


def test_too_many_contributions_are_refused() -> None:
    with pytest.raises(ValueError, match="too many contributions to count"):
        msccl.read(chain("broadcast", 40).replace('loop="2"', 'loop="65536"').encode())


def large_programs() -> dict[str, tuple[str, int]]:
    """Programs of a few megabytes, each with what its proof's time or memory was proportional to.

    The exit code.
    """
    block = [(-1, -1, 0, [do("re", f"i{1 + i % 4000}", f"i{i % 7}") for i in range(20_000)])]
    send, receive = (
        [(1 - gpu, 1 - gpu, 0, [do(kind, "i0", "o0", 65536)] * 3000)]
        for gpu, kind in enumerate("sr")
    )
    return {
        "chunks-times-steps": (xml("allreduce", 65536, [send, receive]), 2),
        "scratch-of-all-gpus": (xml("allreduce", 16, [[]] * 1024, scratch=65536), 2),
        "cells-that-are-asked-for": (xml("allreduce", 16384, [[]] * 64), 2),
        "added-chunks": (
            xml("allreduce", 512, [[(-1, -1, 0, [do("re", "i0", "o0", 512)] * 2000)], *[[]] * 16]),
            1,
        ),
        "sums-that-grow": (xml("allreduce", 4096, [block, [], [], []]), 1),
    }


@pytest.mark.integration  # a process
def test_large_programs_take_neither_gigabytes_nor_hours(tmp_path: Path) -> None:
    paths = []
    for name, (text, _) in large_programs().items():
        paths.append(str(tmp_path / f"{name}.xml"))
        Path(paths[-1]).write_text(text)
    code = """
import resource, sys
from collectives.cli import main
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
print([main(["verify", path]) for path in sys.argv[1:]], file=sys.stderr)
"""
    done = finished([sys.executable, "-c", code, *paths])
    assert done.stderr.endswith(f"{[code for _, code in large_programs().values()]}\n"), done.stderr
