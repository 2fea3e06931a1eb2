"""A host: a process in network, host-name, mount and process namespaces of its own, and its network device.

The namespaces have no name, so nothing of them is on disk; they end with their last process.
Process 1 of a host ends when the pipe to the fabric closes, even if the fabric was killed; the
kernel then ends all other processes there.
"""

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
# Of a host, in the order in which they are entered.
NAMESPACES = ("user", "net", "uts", "pid", "mnt")
MTU = 65000
# A packet in slow motion may wait longer than the 200 ms after which TCP would send it again.
RETRANSMIT_MS = 1000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_CHILD_SUBREAPER = 36
READY = "ready"
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
TUNSETOFFLOAD, TUN_F_CSUM = 0x400454D0, 1
# Bytes before each packet (virtio_net_hdr): they say that the checksum is left out, so the receiver
# does not check it.
OFFLOAD_HEADER = 10

SYSCTL = Path("/proc/sys/net/ipv4")
# Cubic fills a steady link. bbr, the default of some systems, probes it repeatedly, which halves
# the speed of short transfers. Cubic may be a namespace's default only if the whole system allows
# it, but a route may always name it. A connection keeps its speed when it was idle, because the
# links of a cluster do not change meanwhile.
CONGESTION = "cubic"
TCP = {
    # Allowed everywhere: within a host, and on the route where there is no cubic.
    "tcp_congestion_control": "reno",
    "tcp_rmem": "4096 524288 8388608",
    "tcp_wmem": "4096 524288 8388608",
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    "tcp_early_retrans": "0",  # no loss, so no probe for it
}

NO_NAMESPACES = (
    "this system does not let you make namespaces ({}): become root; or allow user namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces "
    "above 0); in a container, start it with --privileged"
)
NO_TUN = (
    "cannot open /dev/net/tun ({}): `modprobe tun`; without root, `chmod 666 /dev/net/tun`; in a "
    "container, start it with --device /dev/net/tun"
)


class Host(NamedTuple):
    """The fabric's end of a host: its device, and its process 1."""

    device: int
    pid: int


def name(host: int) -> str:
    """Return the name of a host.

    >>> name(3)
    'host3'
    """
    return f"host{host}"


def address(host: int) -> str:
    """Return the IPv4 address of a host.

    >>> address(3)
    '10.77.0.4'
    """
    return f"10.77.0.{host + 1}"


def prepare() -> None:
    """Gain the right to make namespaces, if necessary as root of a user namespace.

    Raises OSError, whose message says what to change.
    """
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
    """Make a host that ends when the pipe ``life`` closes.

    Raises OSError, whose message says what to change.
    """
    _unshare(CLONE_NEWNET)
    device = _device(host)
    for setting, value in TCP.items():
        (SYSCTL / setting).write_text(value)
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        _fork_host(host, hosts, life[0], writer)
    os.close(writer)
    with os.fdopen(reader) as reports:
        lines = reports.read().splitlines()
    os.waitpid(middle, 0)
    pids = [int(line) for line in lines if line.isdecimal()]
    reasons = {line for line in lines if line != READY and not line.isdecimal()}
    if reasons or lines.count(READY) != 1:
        raise OSError(NO_NAMESPACES.format(" ".join(reasons)))
    return Host(device, pids[0])


def _device(host: int) -> int:
    """Make a network device whose packets this process reads and writes."""
    from pyroute2 import IPRoute, NetlinkError

    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(
            device,
            TUNSETIFF,
            struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR),
        )
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
            route.route(
                "replace", **network, metrics={"rto_min": RETRANSMIT_MS, "cc_algo": CONGESTION}
            )
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
    return device


def _fork_host(host: int, hosts: int, life: int, writer: int) -> None:
    """Fork process 1 of new namespaces, and exit: only a child enters a new process namespace."""
    try:
        _unshare(CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _run_first(host, hosts, life, writer)
        os.write(writer, f"{pid}\n".encode())
    except OSError as error:
        os.write(writer, f"{error.strerror}\n".encode())
    finally:
        os._exit(0)


def _run_first(host: int, hosts: int, life: int, writer: int) -> None:
    """Set up a host as its process 1, report that, and wait until the fabric ends."""
    try:
        os.setsid()
        # The kernel reaps orphans, which become our children.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
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
        os.closerange(4, max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1)
        os.read(3, 1)
    finally:
        os._exit(0)


def _mount(hosts: int) -> None:
    """Mount a hosts file with all hosts, the host's own /proc, and a /dev/shm that it shares with no other host.

    The file is in a tmpfs that only this mount namespace has; /proc is then mounted over it. A
    server that also accepts IPv6 sees ::ffff:10.77.0.x and looks up its name. That name differs
    from the IPv4 one, because otherwise host0 would have two addresses.
    """
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", b"/proc", b"tmpfs", 0, None)
    known = {"localhost": "127.0.0.1"}
    known |= {name(host): address(host) for host in range(hosts)}
    lines = [f"{at} {named}\n::ffff:{at} {named}-ipv6\n" for named, at in known.items()]
    Path("/proc/hosts").write_text("".join(lines))
    _call("mount", b"/proc/hosts", b"/etc/hosts", None, MS_BIND, None)
    _call("mount", b"proc", b"/proc", b"proc", 0, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)


def _unshare(flags: int) -> None:
    _call("unshare", flags)


def _call(function: str, *arguments: int | bytes | None) -> None:
    """Make a system call that has no function in Python 3.11; `os.unshare` exists from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments):
        code = ctypes.get_errno()
        if code == errno.EPERM:
            raise OSError(code, "not permitted")
        raise OSError(code, f"{function}: {os.strerror(code)}")
