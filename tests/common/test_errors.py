from __future__ import annotations

import pytest

from qdqbert.common.errors import DataFileError, QdqBertError, naming, one_line, shortened


def test_a_message_quotes_no_name_of_any_length() -> None:
    name = "x" * 1_000_000
    with pytest.raises(DataFileError) as caught, naming("data"):
        raise DataFileError(f"Column {name!r} is missing. Pass another `text_column`.")
    message = str(caught.value)
    assert message.startswith("`data`: Column 'xxx")
    assert "x [...] x" in message
    assert message.endswith("x' is missing. Pass another `text_column`.")
    assert len(message) < 2100


def test_a_message_of_usual_length_is_kept() -> None:
    text = "The graph has a cycle. " * 80
    assert str(QdqBertError(text)) == shortened(text) == text


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/copy.onnx failed:/src/graph/"
            "model.cc:256 ort::Model::Model(onnx::ModelProto&&, const std::function<void(int)>*, "
            "const ort::ModelOptions&) Unsupported model IR version: 99, max supported: 13\n",
            "Unsupported model IR version: 99, max supported: 13",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. "
            "Name:'a' Status Message: /src/cpu/add.h:11 void ort::Add(const Tensor&) const x == y "
            "was false. Shapes (2) and (3).",
            "Non-zero status code returned while running Add node. Name:'a' Status Message: x == y "
            "was false. Shapes (2) and (3)",
        ),
        (
            "Exception from src/cpp/core.cpp:132:\nException from src/plugin.cpp:59:\nCheck "
            "'axis == 0' failed at src/nodes/fake.cpp:1499:\nNode 'v' has no axis (2)\n\n",
            "Check 'axis == 0' failed Node 'v' has no axis (2)",
        ),
        ("in line 3:\n  wrong", "in line 3: wrong"),
    ],
    ids=["load", "run", "openvino", "plain"],
)
def test_a_reason_of_another_library_has_no_place_in_its_source(message, reason) -> None:
    assert one_line(message) == reason


def test_a_long_reason_keeps_its_end() -> None:
    reason = one_line("start " * 1000 + "the version is 99.")
    assert reason.startswith("start start")
    assert reason.endswith("the version is 99")
    assert len(reason) < 820
