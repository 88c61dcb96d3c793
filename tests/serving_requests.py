"""Send requests to a server in this process, and compare its answers."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

TEXTS = ["the cat sat on the book", "music in the night", "a dog"]


def post(client, path: str, body: object, **options):
    return client.post(path, json=body, **options)


def answer(client, path: str, body: object):
    """Return the answer to a request, which has the type that the server's description gives."""
    response = post(client, path, body)
    assert response.status_code == 200, response.text
    route, _ = client.app.router.find(f"/{response.request.url.path.strip('/')}")
    TypeAdapter(route.answer).validate_json(response.content, strict=True)
    return response.json()


def close(found, expected) -> None:
    """Compare answers, whose numbers may differ in the last bits."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            close(found[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, (float, np.floating)):
        assert found == pytest.approx(float(expected), abs=1e-5)
    else:
        assert found == expected
