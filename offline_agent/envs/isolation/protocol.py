"""Messages between a run and the processes of its environments: a length and a body, over Unix sockets.

A request to an environment's process is pickled, with its records. An answer is JSON, so nothing that an environment
can send is ever unpickled.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from json import dumps  # by name: an environment may replace `json.dumps` in its process
from typing import Any

_HEADER = struct.Struct("!Q")
_MOST = 1 << 28  # most bytes of a message
_MOST_FDS = 4


class BadMessage(Exception):
    """Bytes that are no message: something else wrote to the socket."""


def send_request(to: socket.socket, request: tuple[Any, ...], *handed: socket.socket) -> None:
    """Send a request, and sockets that go with it; raises OSError where the other side is closed."""
    _send(to, pickle.dumps(request, pickle.HIGHEST_PROTOCOL), *handed)


def receive_request(source: socket.socket) -> tuple[Any, list[socket.socket]]:
    """Return the next request and the sockets that came with it; raises EOFError where the other side closed."""
    data, handed = _receive(source)
    return pickle.loads(data), handed


def send_answer(to: socket.socket, answer: dict[str, Any]) -> None:
    """Send an answer; raises TypeError or ValueError where it is no JSON, OSError where the other side is closed."""
    _send(to, dumps(answer).encode("ascii"))


def receive_answer(source: socket.socket) -> dict[str, Any]:
    """Return the next answer.

    Raises:
        EOFError: The other side closed, or ended.
        BadMessage: It sent something else.
    """
    data, handed = _receive(source)
    for one in handed:
        one.close()
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage("it sent something that is no JSON") from error
    if not isinstance(answer, dict):
        raise BadMessage(f"it sent a JSON {type(answer).__name__}, not an object")
    return answer


def _send(to: socket.socket, body: bytes, *handed: socket.socket) -> None:
    data = _HEADER.pack(len(body)) + body
    if handed:
        sent = socket.send_fds(to, [data], [one.fileno() for one in handed])
        data = data[sent:]
    if data:
        to.sendall(data)


def _receive(source: socket.socket) -> tuple[bytes, list[socket.socket]]:
    data, fds, _, _ = socket.recv_fds(source, _HEADER.size, _MOST_FDS)
    handed = [socket.socket(fileno=fd) for fd in fds]
    (length,) = _HEADER.unpack(_filled(source, bytearray(data), _HEADER.size))
    if length > _MOST:
        raise BadMessage(f"it announced a message of {length} bytes")
    return bytes(_filled(source, bytearray(), length)), handed


def _filled(source: socket.socket, buffer: bytearray, size: int) -> bytearray:
    while len(buffer) < size:
        data = source.recv(min(size - len(buffer), 1 << 20))
        if not data:
            raise EOFError
        buffer += data
    return buffer
