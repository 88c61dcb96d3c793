"""Find a Ray cluster, and say what is wrong with an address before Ray waits for it for minutes.

A cluster answers gRPC. Its first answer, and that of any other server, is read from a plain socket,
because Ray repeats calls that fail, and ends the process when they go on to fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import threading
from collections.abc import Iterator
from typing import Any

from qdqbert.common.errors import UserInputError

# Address of the cluster that Ray finds by itself.
ANY_CLUSTER = "auto"
# Address of a cluster of this machine only, which is started.
LOCAL = "local"

_ADVICE = (
    "Check the address: `ray start --head` prints it. Its port is 6379 by default; 8265 is that of "
    "the dashboard, and 10001 that of Ray Client."
)

# Seconds for a name, a connection and an answer together, and for one of the addresses of a name.
_SECONDS = 10.0
_CONNECTION_SECONDS = 4.0

# Kinds of frames of HTTP/2.
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
# Flags of a frame: nothing follows in its stream, or in its headers.
_END_STREAM, _END_HEADERS = 1, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Any process may call it. Its message has no fields, and a prefix of 5 bytes.
_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_EMPTY_MESSAGE = bytes(5)
# The first header of an answer of gRPC, HTTP's status 200.
_OK = 0x88
# gRPC's status of a call that the server does not have.
_UNIMPLEMENTED = b"grpc-status\x0212"

# Key and namespace of the cluster's versions.
_VERSIONS = (b"CLUSTER_METADATA", b"cluster")


def find_cluster(ray: Any, address: str) -> str | None:
    """Return the address of a cluster that this process can use; `None` to start one here.

    Raises:
        UserInputError: No cluster answers, no node of it runs on this machine, or it has another
            version of Ray or Python.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == ANY_CLUSTER else address
    shown = f"`ray={address!r}`" + (
        f", RAY_ADDRESS={named!r}" if named not in ("", address) else ""
    )
    if "://" in named:
        raise _refusal(shown, _reason_of_url(named))
    if named not in ("", ANY_CLUSTER, LOCAL):
        host, _, port = named.rpartition(":")
        if not host or not port.isdecimal() or int(port) >= 1 << 16:
            raise _refusal(shown, f"an address is HOST:PORT. {_ADVICE}")
    try:
        found = ray._private.services.canonicalize_bootstrap_address(named or ANY_CLUSTER)
    except ConnectionError:
        found = None
    if found is None:
        return None
    host, _, port = found.rpartition(":")
    wrong = _what_answers(host.strip("[]"), int(port))
    if wrong and not named:
        # Ray remembers the address of a cluster that has ended.
        return None
    if wrong:
        raise _refusal(shown, f"{wrong}. {_ADVICE}")
    _check_cluster(ray, found, shown)
    return str(found)


def refuse_client(ray: Any) -> None:
    """Refuse a Ray that this process is connected to by Ray Client."""
    if ray.util.client.ray.is_connected():
        raise _refusal("`ray`", _reason_of_url("ray://HOST:10001"))


def _refusal(shown: str, reason: str) -> UserInputError:
    return UserInputError(f"{shown}: {reason}", argument="ray")


def _reason_of_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    server = rest.partition("/")[0]
    host = server.rpartition(":")[0] or server
    if scheme in ("http", "https"):
        return (
            "this is the address of Ray's dashboard. Pass the cluster's, which is "
            f"'{host}:6379' by default. Or submit the command: `ray job submit --address {url} "
            "-- ...`."
        )
    if scheme == "ray":
        return (
            "Ray Client cannot be used, because Ray Data does not run on it. Run the command on a "
            f"node of the cluster, with the cluster's address, which is '{host}:6379' by default. "
            f"Or submit it: `ray job submit --address http://{host}:8265 -- ...`."
        )
    return f"an address is HOST:PORT. {_ADVICE}"


def _what_answers(host: str, port: int) -> str | None:
    """Return what answers at an address instead of a cluster; `None` for a cluster."""
    found: list[str | None] = []
    # Looking up a name has no limit of its own.
    thread = threading.Thread(target=lambda: found.append(_ask(host, port)), daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found[0] if found else _silent(host)


def _silent(host: str) -> str:
    return f"{host} does not answer within {_SECONDS:.0f} s"


def _ask(host: str, port: int) -> str | None:
    try:
        stream = socket.create_connection((host, port), _CONNECTION_SECONDS)
    except socket.gaierror:
        return f"there is no machine named {host!r}"
    except ConnectionRefusedError:
        return f"nothing listens at port {port} of {host}"
    except OSError as error:
        return f"{host} cannot be reached ({error.strerror or error})"
    if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
        stream.close()
        return None
    with stream, contextlib.suppress(OSError):
        try:
            stream.settimeout(_SECONDS)
            stream.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _call(host))
            received = stream.recv(8)
            if received.startswith(b"HTTP/"):
                return f"an HTTP server answers at port {port} of {host}, such as Ray's dashboard"
            for kind, flags, number, content in _frames(stream, received):
                if kind == _HEADERS and (_OK not in content[:3] or _UNIMPLEMENTED in content):
                    break
                # Ray itself says what other errors of gRPC mean.
                if number and (kind == _DATA or flags & _END_STREAM):
                    return None
        except TimeoutError:
            return _silent(host)
    return f"another server than a cluster's answers at port {port} of {host}"


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def _call(host: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _CALL,
        ":authority": host,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    # Lengths below 127 are a byte.
    headers = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode("idna")
        for name, value in fields.items()
    )
    return _frame(_HEADERS, _END_HEADERS, 1, headers) + _frame(
        _DATA, _END_STREAM, 1, _EMPTY_MESSAGE
    )


def _frames(stream: socket.socket, received: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags, stream and content of each frame."""
    while more := stream.recv(1 << 14):
        received += more
        while len(received) >= (end := 9 + int.from_bytes(received[:3])):
            yield received[3], received[4], int.from_bytes(received[5:9]), received[9:end]
            received = received[end:]


def _check_cluster(ray: Any, address: str, shown: str) -> None:
    """Refuse a cluster of another version, or without a node on this machine."""
    try:
        client = ray._raylet.GcsClient(address=address)
        versions = json.loads(client.internal_kv_get(*_VERSIONS, timeout=_SECONDS) or b"{}")
        nodes = client.get_all_node_info(timeout=_SECONDS).values()
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise _refusal(shown, f"the cluster cannot be asked for its nodes: {error}") from error
    if versions:
        try:
            ray._private.utils.check_version_info(versions, "this machine")
        except RuntimeError as error:
            raise _refusal(
                shown,
                f"the cluster has Ray {versions['ray_version']} and Python "
                f"{versions['python_version']}, and this process has Ray {ray.__version__} and "
                f"Python {platform.python_version()}. They have to be the same.",
            ) from error
    # 0 is the state of a node that is alive.
    here = any(_is_of_this_machine(each.node_manager_address) for each in nodes if not each.state)
    # A node may have been given another address than one of its machine.
    if not here and not ray._private.services.find_gcs_addresses():
        raise _refusal(
            shown,
            "no node of the cluster runs on this machine. Run the command on a node, or make this "
            f"machine one: `ray start --address={address}`.",
        )


def _is_of_this_machine(address: str) -> bool:
    """Return whether an address is one of this machine: only those can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
