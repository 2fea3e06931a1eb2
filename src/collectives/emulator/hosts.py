"""A host: a process in network, host-name, mount and process namespaces of its own, and a device that leads out of it.

The namespaces have no name, so nothing of them is on disk; they end with the last process in them. Process 1 of a host
ends when the pipe to the fabric does, however the fabric ended, and the kernel then ends all others there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

INTERFACE = "eth0"
MTU = 65000
RETRANSMIT_MS = 1000  # a queue in slow motion is longer than the fifth of a second after which TCP gives a packet up
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_CHILD_SUBREAPER = 36
READY = "ready"
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
TUNSETOFFLOAD, TUN_F_CSUM = 0x400454D0, 1
# What stands before each packet: it says that the checksum was left out, and then the receiver asks for none.
OFFLOAD_HEADER = 10

SYSCTL = Path("/proc/sys/net/ipv4")
# Cubic fills a steady link; bbr, which some systems prefer, measures it again and again, and that costs short transfers
# half of their speed. A namespace may not have cubic as its default unless the whole system allows it; a route may.
# A connection that was idle is as fast as before: the links of a cluster do not change meanwhile.
CONGESTION = "cubic"
TCP = {
    "tcp_congestion_control": "reno",  # allowed everywhere: within a host, and on the route where there is no cubic
    "tcp_rmem": "4096 524288 8388608",
    "tcp_wmem": "4096 524288 8388608",
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    "tcp_early_retrans": "0",  # nothing is lost, so nothing need be sent again to try
}

NO_NAMESPACES = (
    "this system does not let you make namespaces ({}): be root; or allow user namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces "
    "above 0); in a container, start it with --privileged"
)
NO_TUN = (
    "there is no /dev/net/tun that you may open ({}): `modprobe tun`; without root, `chmod 666 /dev/net/tun`; in a "
    "container, start it with --device /dev/net/tun"
)


class Host(NamedTuple):
    """The fabric's end of a host: its device, and its process 1."""

    device: int
    pid: int


def name(host: int) -> str:
    """What a host is called: host0, host1 and so on."""
    return f"host{host}"


def address(host: int) -> str:
    """Where a host is reached: 10.77.0.1 and so on."""
    return f"10.77.0.{host + 1}"


def prepare() -> None:
    """Gain the right to make namespaces, as root of a user namespace where need be; OSError says what to change."""
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    uid, gid = os.geteuid(), os.getegid()
    try:
        try:
            _unshare(CLONE_NEWNET)
        except PermissionError:
            _unshare(CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
            _unshare(CLONE_NEWNET)
    except OSError as error:
        raise OSError(NO_NAMESPACES.format(error.strerror)) from None


def make(host: int, hosts: int, life: tuple[int, int]) -> Host:
    """A new host; ``life`` is the pipe whose end ends it. Raises OSError that says what to change."""
    _unshare(CLONE_NEWNET)
    device = _device(host)
    for setting, value in TCP.items():
        (SYSCTL / setting).write_text(value)
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        _fork_host(host, hosts, life[0], writer)
    os.close(writer)
    with os.fdopen(reader) as said:
        lines = said.read().splitlines()
    os.waitpid(middle, 0)
    pids = [int(line) for line in lines if line.isdecimal()]
    if sorted(lines) != sorted([*map(str, pids), READY]):
        raise OSError(NO_NAMESPACES.format(" ".join(set(lines) - {READY, *map(str, pids)})))
    return Host(device, pids[0])


def _device(host: int) -> int:
    """A network device whose packets this process reads and writes."""
    from pyroute2 import IPRoute, NetlinkError

    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM)
    except OSError as error:
        raise OSError(NO_TUN.format(error.strerror)) from None
    with IPRoute() as route:
        index = route.link_lookup(ifname=INTERFACE)[0]
        route.addr("add", index=index, address=address(host), prefixlen=24)
        route.link("set", index=index, mtu=MTU, txqlen=10000, state="up")
        network = {"dst": "10.77.0.0/24", "oif": index, "scope": "link"}
        route.route("replace", **network, metrics={"rto_min": RETRANSMIT_MS})
        with suppress(NetlinkError):  # the kernel has no cubic
            route.route("replace", **network, metrics={"rto_min": RETRANSMIT_MS, "cc_algo": CONGESTION})
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
    return device


def _fork_host(host: int, hosts: int, life: int, writer: int) -> None:
    """Leave a child that is process 1 of new namespaces, and end: a process cannot enter a process namespace itself."""
    try:
        _unshare(CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _be_first(host, hosts, life, writer)
        os.write(writer, f"{pid}\n".encode())
    except OSError as error:
        os.write(writer, f"{error.strerror}\n".encode())
    finally:
        os._exit(0)


def _be_first(host: int, hosts: int, life: int, writer: int) -> None:
    """Process 1 of a host: set it up, say so, and wait for the end of the fabric."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel clears away orphans, which become our children
        socket.sethostname(name(host))
        _mount(hosts)
        os.write(writer, f"{READY}\n".encode())
    except OSError as error:
        os.write(writer, f"{error.strerror}\n".encode())
    else:
        null = os.open("/dev/null", os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.dup2(life, 3)
        os.closerange(4, 1 << 16)
        os.read(3, 1)
    finally:
        os._exit(0)


def _mount(hosts: int) -> None:
    """A hosts file that knows all hosts, the host's own processes, and no memory shared with other hosts.

    The file lies in a file system in memory that only this mount namespace has; /proc is then mounted over it. A server
    that also takes IPv6 sees ::ffff:10.77.0.x and asks for that address's name. The name is one of its own, or
    looking up host0 would give two addresses.
    """
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", b"/proc", b"tmpfs", 0, None)
    known = [("127.0.0.1", "localhost"), *((address(each), name(each)) for each in range(hosts))]
    Path("/proc/hosts").write_text("".join(f"{at} {named}\n::ffff:{at} {named}-ipv6\n" for at, named in known))
    _call("mount", b"/proc/hosts", b"/etc/hosts", None, MS_BIND, None)
    _call("mount", b"proc", b"/proc", b"proc", 0, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)


def _unshare(flags: int) -> None:
    _call("unshare", flags)


def _call(function: str, *arguments: int | bytes | None) -> None:
    """A system call that Python 3.11 has no function for."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}" if code != errno.EPERM else "not permitted")
