"""Asks a gRPC health service, as the kubelet does: in the clear. python3 ask_health.py HOST:PORT [SERVICE]"""

import socket
import struct
import sys

STATUS = {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header(name, value):  # literal, not indexed
    return b"".join((b"\x00", bytes((len(name),)), name.encode(), bytes((len(value),)), value.encode()))


def exactly(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed before it answered")
        data += more
    return data


def ask(address, service=""):
    host, port = address.rsplit(":", 1)
    request = b"\x0a" + bytes((len(service),)) + service.encode() if service else b""
    headers = (header(":method", "POST") + header(":scheme", "http") + header(":path", "/grpc.health.v1.Health/Check")
               + header(":authority", address) + header("content-type", "application/grpc") + header("te", "trailers"))
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers)
                           + frame(0, 1, 1, b"\x00" + struct.pack(">I", len(request)) + request))
        while True:
            size, kind, flags, stream = struct.unpack(">IBBI", b"\x00" + exactly(connection, 9))
            payload = exactly(connection, size)
            if kind == 0 and stream == 1:
                return STATUS.get(payload[5:], "UNKNOWN")
            if kind in (3, 7) or (kind == 1 and flags & 1):
                return "NO ANSWER"


if __name__ == "__main__":
    print(ask(*sys.argv[1:]))
