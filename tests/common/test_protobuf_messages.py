from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.common.protobuf_messages import fields_of, text_of


@given(
    name=st.text(max_size=300),
    dims=st.lists(st.integers(0, 2**63 - 1), max_size=5),
    number=st.floats(width=32, allow_nan=False),
)
def test_fields_are_those_that_protobuf_wrote(name, dims, number) -> None:
    attribute = onnx.AttributeProto(name=name, f=number, s=name.encode())
    message = onnx.NodeProto(name=name, attribute=[attribute])
    found = list(fields_of(message.SerializeToString()))
    # Fields that are equal to their defaults are written, because they were set.
    assert [text_of(value) for field, value in found if field == 3] == [name]
    (inner,) = (value for field, value in found if field == 5)
    assert onnx.AttributeProto.FromString(bytes(inner)) == attribute
    tensor = onnx.TensorProto(dims=dims)
    packed = list(fields_of(tensor.SerializeToString()))
    assert [value for field, value in packed if field == 1] == dims


@pytest.mark.parametrize("size", range(1, 12))
def test_a_message_that_was_cut_off_is_damaged(size) -> None:
    whole = b"\x0a\x03abc\x10\x96\x01\x1d\x00\x00\x80\x3f"
    assert [field for field, _ in fields_of(whole)] == [1, 2, 3]
    if size not in (5, 8):
        with pytest.raises(ValueError, match="does not"):
            list(fields_of(whole[:size]))


@pytest.mark.parametrize(
    "message", [b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b", 7]
)
def test_what_is_no_message_is_damaged(message) -> None:
    with pytest.raises(ValueError, match=r"does not|is a number"):
        list(fields_of(message))


def test_a_number_is_no_text() -> None:
    with pytest.raises(ValueError, match="a text is a number"):
        text_of(3)
