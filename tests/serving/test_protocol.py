"""Connections: requests of clients that offer another protocol, and what is written."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from qdqbert.serving.protocol import PlainProtocol

BODY = b'{"inputs":"a"}'
# As java.net.http.HttpClient sends it.
HEAD = (
    b"POST /embed HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 14\r\n"
    b"Host: localhost\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    b"Upgrade: h2c\r\nUser-Agent: Java-http-client/17\r\n\r\n"
)
CHUNKED = HEAD.replace(b"Content-Length: 14", b"Transfer-Encoding: chunked")
PLAIN = b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n"


def connected(app: Any) -> tuple[PlainProtocol, mock.Mock]:
    """Return a connection of an application, and its transport."""
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    connection = PlainProtocol(config=config, server_state=ServerState(), app_state={})
    transport = mock.Mock()
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    connection.connection_made(transport)
    return connection, transport


async def soon() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def text_of(transport: mock.Mock) -> list[bytes]:
    return [b"".join(call.args[0]) for call in transport.writelines.call_args_list]


def written(app: Any, *sent: bytes) -> list[bytes]:
    """Send data to a connection of an application, and return what it writes, by writes."""

    async def main() -> list[bytes]:
        connection, transport = connected(app)
        for each in sent:
            connection.data_received(each)
            await asyncio.sleep(0)
        await soon()
        connection.connection_lost(None)
        return text_of(transport)

    return asyncio.run(main())


def ask(*sent: bytes) -> tuple[list[tuple[str, dict[bytes, bytes], bytes]], bytes]:
    """Send data to a connection, and return its requests and what it answered."""
    requests = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        requests.append((scope["path"], dict(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    answer = b"".join(written(app, *sent))
    return requests, answer


@pytest.mark.parametrize(
    "sent",
    [
        [HEAD + BODY],
        [HEAD, BODY],
        [HEAD[:50], HEAD[50:] + BODY[:3], BODY[3:]],
        [CHUNKED + b"e\r\n" + BODY + b"\r\n0\r\n\r\n"],
        [HEAD.replace(b"h2c", b"websocket") + BODY],
    ],
    ids=["at once", "body later", "in pieces", "chunked", "websocket"],
)
def test_a_request_keeps_its_body_although_it_offers_another_protocol(sent) -> None:
    ((path, headers, body),), answer = ask(*sent)
    assert (path, body) == ("/embed", BODY)
    assert headers[b"user-agent"] == b"Java-http-client/17"
    assert headers.keys().isdisjoint({b"upgrade", b"http2-settings", b"connection"})
    assert answer.startswith(b"HTTP/1.1 204")


def test_requests_on_one_connection_stay_apart() -> None:
    requests, answer = ask(PLAIN + BODY + HEAD + BODY + PLAIN + BODY, HEAD + BODY)
    assert [path for path, _, _ in requests] == ["/plain", "/embed", "/plain", "/embed"]
    assert [body for _, _, body in requests] == [BODY] * 4
    assert answer.count(b"HTTP/1.1 204") == 4


def test_what_else_the_connection_header_says_counts() -> None:
    closing = HEAD.replace(b"Connection: Upgrade", b"Connection: close, Upgrade")
    ((_, headers, body),), answer = ask(closing + BODY)
    assert headers[b"connection"] == b"close"
    assert body == BODY
    assert b"connection: close" in answer


def test_a_tunnel_is_not_read_again() -> None:
    requests, _ = ask(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert len(requests) <= 1


def test_head_and_body_of_a_response_are_written_together() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"fine"})

    (response,) = written(app, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert response == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"


def test_a_response_is_written_before_its_connection_is_closed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    (response,) = written(app, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"connection: close" in response
    assert b"fine" in response


@pytest.mark.parametrize("sent", [PLAIN + BODY, PLAIN, PLAIN + BODY[:3]])
def test_a_request_without_an_answer_gets_503_when_it_is_cut(sent, caplog) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        seen.append(message["type"])

    async def main() -> list[bytes]:
        connection, transport = connected(app)
        connection.data_received(sent)
        await soon()
        connection.cut()
        await soon()
        transport.close.assert_called()
        return text_of(transport)

    (response,) = asyncio.run(main())
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in response
    assert seen == ["http.disconnect"]
    assert not caplog.records


def test_a_response_that_has_begun_is_cut_off() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    async def main() -> None:
        connection, transport = connected(app)
        connection.data_received(PLAIN + BODY)
        await soon()
        connection.cut()
        transport.abort.assert_called()

    asyncio.run(main())


def test_the_first_request_of_a_new_connection_is_answered_while_the_server_ends() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> tuple[bytes, bool]:
        connection, transport = connected(app)
        connection.shutdown()
        transport.close.assert_not_called()
        connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await soon()
        return b"".join(text_of(transport)), transport.close.called

    response, is_closed = asyncio.run(main())
    assert response.startswith(b"HTTP/1.1 204 ")
    assert b"connection: close" in response
    assert is_closed
