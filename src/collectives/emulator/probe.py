"""The process that `check` runs on every host: it sends, receives and echoes, and reports rates and times.

It is a script that imports Python's own modules only, so that it starts fast. Jobs are lines of JSON on standard input.
"""

import json
import select
import socket
import sys
import time
from typing import Any

PORT = 5001
PIECE = 1 << 20
CONNECT_SECONDS = 30.0


def main() -> None:
    """Do one job after the other, with the machine's clock, which all hosts share."""
    with socket.create_server(("", PORT), backlog=512) as server:
        server.settimeout(CONNECT_SECONDS)
        say({})
        for line in sys.stdin:
            job = json.loads(line)
            outgoing = [socket.create_connection((to, PORT), CONNECT_SECONDS) for to in job["to"]]
            incoming = [server.accept()[0] for _ in range(job["from"])]
            for each in outgoing + incoming:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            say({})
            job |= json.loads(sys.stdin.readline())
            time.sleep(max(0.0, job["at"] - time.monotonic()))
            say(echo(job, outgoing, incoming) if "times" in job else stream(job, outgoing, incoming))
            for each in outgoing + incoming:
                each.close()


def say(answer: dict[str, Any]) -> None:
    """Write one line for `check`."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def echo(job: dict[str, Any], outgoing: list[socket.socket], incoming: list[socket.socket]) -> dict[str, Any]:
    """Seconds of each round trip of one byte; a host without a peer to send to echoes instead."""
    took = []
    for _ in range(job["times"]):
        start = time.monotonic()
        for to in outgoing:
            to.sendall(b"?")
            to.recv(1)
        for of in incoming:
            of.sendall(of.recv(1))
        took.append(time.monotonic() - start)
    return {"round_trips": took if outgoing else []}


def stream(job: dict[str, Any], outgoing: list[socket.socket], incoming: list[socket.socket]) -> dict[str, Any]:
    """Send and receive on all connections at once: this host's rate, and how even the shares were after half the bytes.

    The rate counts all bytes from the common start to the last of them. From the first read it would exceed the link's,
    because bytes arrive before a host reads.
    """
    left = {to.fileno(): (to, job["bytes"]) for to in outgoing}
    got = {of.fileno(): 0 for of in incoming}
    sockets = {of.fileno(): of for of in incoming}
    poll, piece, into = select.epoll(), memoryview(bytes(PIECE)), bytearray(PIECE)
    for number in (*left, *got):
        poll.register(number, select.EPOLLOUT if number in left else select.EPOLLIN)
    for each in outgoing + incoming:
        each.setblocking(False)
    total, whole = 0, job["bytes"] * len(got)
    shares: list[int] = []
    end = job["at"]
    while left or total < whole:
        for number, _ in poll.poll(job["limit"]):
            if number in left:
                to, rest = left[number]
                left[number] = to, rest - to.send(piece[:rest])
                if not left[number][1]:
                    poll.unregister(number)
                    del left[number]
            else:
                received = sockets[number].recv_into(into)
                got[number] += received
                total += received
                end = time.monotonic()
        if not shares and 2 * total >= whole:
            shares = list(got.values())
    return {"rate": whole / (end - job["at"]) if whole else None, "evenness": _evenness(shares)}


def _evenness(shares: list[int]) -> float | None:
    """Jain's index: 1 when all have the same, 1 / n when one of n has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)) if shares else None


if __name__ == "__main__":
    main()
