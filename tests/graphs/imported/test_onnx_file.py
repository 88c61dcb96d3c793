from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.imported.onnx_file import OLDEST_OPSET, load_graph, read_graph

X = np.array([[1, -2, 3], [0.5, 0, -4]], np.float32)
WEIGHT = np.arange(1200, dtype=np.float32).reshape(3, 400)  # large enough to stay in its file


def linear_model(**options) -> onnx.ModelProto:
    """`y = x @ w`."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 400])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", options.pop("opset", 14))], ir_version=8
    )


def external(model: onnx.ModelProto, **entries: str) -> onnx.ModelProto:
    """Move the weight to an external file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


def text_model(body: str, *, opset: int = 14, more: str = "", also: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}{more}]> g (float[2, 3] x) => (float[2, 3] y) '
        f"{{ {body} }} {also}"
    )


@pytest.fixture
def write(tmp_path):
    """Return a function that writes `bert.onnx` to a folder of its own."""

    def write(content: bytes | onnx.ModelProto) -> Path:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        path = folder / "bert.onnx"
        made = content if isinstance(content, bytes) else content.SerializeToString()
        path.write_bytes(made)
        return path

    return write


def refusal(path: Path, read=read_graph) -> str:
    """Return the message about a file that cannot be read: one line with its name."""
    with pytest.raises(UserInputError) as caught:
        read(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    assert text.endswith(".")
    return text


def test_a_missing_file_is_named(tmp_path) -> None:
    assert "no such file" in refusal(tmp_path / "bert.onnx")


def test_a_folder_is_not_a_file(tmp_path) -> None:
    (tmp_path / "bert.onnx").mkdir()
    assert "no such file" in refusal(tmp_path / "bert.onnx")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>Not found</html>\n",
        b"\x00" * 64,
        b"PK\x03\x04",
    ],
    ids=["empty", "text", "zeros", "zip"],
)
def test_a_file_of_another_format_is_refused(write, content) -> None:
    text = refusal(write(content))
    assert "export or copy it again" in text


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(write, share) -> None:
    whole = linear_model().SerializeToString()
    assert "export or copy it again" in refusal(write(whole[: int(len(whole) * share)]))


def test_a_model_without_a_graph_is_refused(write) -> None:
    assert "contains no graph" in refusal(write(onnx.ModelProto(ir_version=8)))


@pytest.mark.parametrize("domain", ["ai.onnx.contrib", "ai.onnx.ml"])
def test_a_model_that_reads_text_is_refused_with_the_way_out(write, domain) -> None:
    text, tokens = (
        onnx.helper.make_tensor_value_info(name, kind, ["n"])
        for name, kind in (("text", onnx.TensorProto.STRING), ("ids", onnx.TensorProto.INT64))
    )
    node = onnx.helper.make_node("BertTokenizer", ["text"], ["ids"], domain=domain)
    graph = onnx.helper.make_graph([node], "g", [text], [tokens])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(domain, 1)]
    message = refusal(write(onnx.helper.make_model(graph, opset_imports=opsets)))
    assert "its input 'text' is text, so that the tokenizer is a part of the graph" in message
    assert "pass the graph that reads input_ids, and its tokenizer as `tokenizer`" in message


def test_an_opset_before_the_oldest_is_refused(write) -> None:
    text = refusal(write(linear_model(opset=OLDEST_OPSET - 1)))
    assert f"opset {OLDEST_OPSET - 1} is too old" in text
    assert f"opset {OLDEST_OPSET} or newer" in text


def test_an_opset_that_onnx_does_not_know_is_refused(write) -> None:
    newest = onnx.defs.onnx_opset_version()
    text = refusal(write(linear_model(opset=newest + 1)))
    assert f"opset {newest + 1} is newer" in text
    assert "update onnx or export with an older opset" in text


def test_a_model_without_an_opset_is_refused(write) -> None:
    model = linear_model()
    del model.opset_import[:]
    assert "does not specify its opset" in refusal(write(model))


@pytest.mark.parametrize("opset", [OLDEST_OPSET, 13, 17, 21, 23])
def test_older_opsets_are_converted_and_newer_ones_kept(write, opset) -> None:
    read = read_graph(write(linear_model(opset=opset)))
    assert read.opset_imports[""] == max(opset, 21)


@pytest.mark.parametrize(
    ("domain", "op_type"),
    [
        ("", "QuantizeLinear"),
        ("", "DequantizeLinear"),
        ("", "DynamicQuantizeLinear"),
        ("", "QLinearMatMul"),
        ("", "MatMulInteger"),
        ("com.microsoft", "QAttention"),
        ("com.microsoft", "QLinearAdd"),
        ("com.microsoft", "QOrderedMatMul"),
        ("com.microsoft", "QEmbedLayerNormalization"),
        ("com.microsoft", "MatMulNBits"),
    ],
)
def test_a_quantized_graph_is_refused(write, domain, op_type) -> None:
    model = linear_model()
    model.graph.node.append(
        helper.make_node(op_type, ["y"], ["z"], name="quantized", domain=domain)
    )
    text = refusal(write(model))
    assert f"already quantized (node 'quantized', {op_type})" in text
    assert "pass the float graph" in text


def test_a_quantized_operator_is_found_inside_a_function_and_a_branch(write) -> None:
    inner = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "w"], ["z"], name="deep")], "inner", [], []
    )
    branched = linear_model()
    branched.graph.node.append(
        helper.make_node("If", ["x"], ["z"], then_branch=inner, else_branch=inner)
    )
    assert "node 'deep'" in refusal(write(branched))
    called = text_model(
        "y = local.f (x)",
        more=', "local" : 1',
        also='<opset_import: ["" : 14], domain: "local"> f (a) => (b) '
        "{ one = Constant <value = float {1.0}> () b = DequantizeLinear (a, one) }",
    )
    assert "DequantizeLinear" in refusal(write(called))


def test_an_operator_of_another_domain_is_named(write) -> None:
    model = linear_model()
    model.graph.node[0].domain = "org.pytorch.aten"
    text = refusal(write(model))
    assert "node 'product'" in text
    assert "'org.pytorch.aten'" in text


def test_an_operator_that_does_not_exist_is_refused(write) -> None:
    model = linear_model()
    model.graph.node[0].op_type = "Nonsense"
    assert "Nonsense" in refusal(write(model))


def test_a_node_that_reads_a_missing_value_is_refused(write) -> None:
    model = linear_model()
    model.graph.node[0].input[0] = "nowhere"
    assert "nowhere" in refusal(write(model))


def test_missing_external_data_is_named_with_a_hint(write) -> None:
    text = refusal(write(external(linear_model(), location="bert.onnx.data")))
    assert "'bert.onnx.data', which is missing" in text
    assert "put it next to the graph" in text


# What `weights.bin` next to the graph is, in huggingface_hub's cache and in another folder.
PLACES = {
    "file": None,
    "link-below": "inner/own.bin",
    "link-to-blob": "../../blobs/2222",
    "link-to-link-to-blob": "again.bin",
    "link-to-other-repository": "../../../models--a--c/blobs/2222",
    "link-beside-blobs": "../../other.bin",
    "link-below-blobs": "../../blobs/inner/3333",
    "link-to-linked-blob": "../../blobs/4444",
    "link-elsewhere": "{root}/other.bin",
}
READ = {"cache": {"file", "link-below", "link-to-blob", "link-to-link-to-blob"}}
READ["folder"] = READ["cache"] - {"link-to-blob", "link-to-link-to-blob"}


def place(tmp_path: Path, layout: str) -> Path:
    """Return the folder of a graph, with the same weights in every file around it."""
    repository = tmp_path / ("models--a--b" if layout == "cache" else "mine")
    folder = repository / ("snapshots" if layout == "cache" else "versions") / "main"
    files = ["other.bin", "models--a--c/blobs/2222"]
    files += [
        f"{repository.name}/{each}" for each in ("other.bin", "blobs/2222", "blobs/inner/3333")
    ]
    for each in (*(tmp_path / each for each in files), folder / "inner" / "own.bin"):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_bytes(WEIGHT.tobytes())
    (repository / "blobs" / "4444").symlink_to(tmp_path / "other.bin")
    (folder / "again.bin").symlink_to("../../blobs/2222")
    return folder


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("layout", ["cache", "folder"])
@pytest.mark.parametrize("read", [read_graph, load_graph])
def test_a_link_to_weights_is_followed_inside_the_folder_and_to_blobs_of_the_cache(
    tmp_path, layout, kind, read
) -> None:
    folder, target = place(tmp_path, layout), PLACES[kind]
    path, weights = folder / "bert.onnx", folder / "weights.bin"
    path.write_bytes(external(linear_model(), location="weights.bin").SerializeToString())
    if target is None:
        weights.write_bytes(WEIGHT.tobytes())
    else:
        weights.symlink_to(target.format(root=tmp_path))
    assert weights.read_bytes() == WEIGHT.tobytes()
    if kind not in READ[layout]:
        assert "outside of the graph's folder" in refusal(path, read)
        return
    np.testing.assert_array_equal(read(path).graph.initializers["w"].const_value.numpy(), WEIGHT)


@pytest.mark.parametrize(
    "location",
    [
        "../other.bin",
        "../../blobs/2222",
        "inner/../../../blobs/2222",
        "{root}/other.bin",
        "{root}/models--a--b/blobs/2222",
        "/etc/hostname",
        "",
    ],
)
@pytest.mark.parametrize("layout", ["cache", "folder"])
def test_external_data_outside_of_the_folder_is_not_read(tmp_path, layout, location) -> None:
    path = place(tmp_path, layout) / "bert.onnx"
    model = external(linear_model(), location=location.format(root=tmp_path))
    path.write_bytes(model.SerializeToString())
    assert "outside of the graph's folder" in refusal(path)


def test_a_linked_folder_of_blobs_is_not_followed(tmp_path) -> None:
    folder = place(tmp_path, "cache")
    blobs = folder.parents[1] / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    path = folder / "bert.onnx"
    path.write_bytes(external(linear_model(), location="again.bin").SerializeToString())
    assert "outside of the graph's folder" in refusal(path)


def test_a_graph_in_the_cache_is_a_link_too_and_runs(tmp_path, run_plainly) -> None:
    folder = place(tmp_path, "cache") / "onnx"
    folder.mkdir()
    blob = folder.parents[2] / "blobs" / "1111"
    blob.write_bytes(external(linear_model(), location="model.onnx_data").SerializeToString())
    (folder / "model.onnx").symlink_to("../../../blobs/1111")
    (folder / "model.onnx_data").symlink_to("../../../blobs/2222")
    made = run_plainly(read_graph(folder / "model.onnx"), {"x": X})["y"]
    np.testing.assert_allclose(made, X @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize(
    "entries",
    [{"length": "4800"}, {"offset": "8", "length": "4800"}, {}, {"offset": "-4"}, {"length": "9"}],
    ids=str,
)
def test_an_external_file_that_is_too_short_is_refused(write, entries) -> None:
    path = write(external(linear_model(), location="weights.bin", **entries))
    (path.parent / "weights.bin").write_bytes(WEIGHT.tobytes()[:-1])
    assert "the file 'weights.bin' is incomplete" in refusal(path)


def test_an_offset_that_is_not_a_number_is_refused(write) -> None:
    path = write(external(linear_model(), location="weights.bin", offset="here"))
    (path.parent / "weights.bin").write_bytes(WEIGHT.tobytes())
    assert "weight 'w' has no valid offset" in refusal(path)


def test_a_weight_in_the_graph_that_is_too_short_is_refused(write) -> None:
    model = linear_model()
    model.graph.initializer[0].raw_data = WEIGHT.tobytes()[:-4]
    refusal(write(model))


def test_a_constant_in_a_file_outside_is_not_read_either(write, tmp_path) -> None:
    (tmp_path / "other.bin").write_bytes(WEIGHT.tobytes())
    model = linear_model()
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 400])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../other.bin")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    del model.graph.initializer[:]
    assert "outside of the graph's folder" in refusal(write(model))


@pytest.mark.parametrize("opset", [14, 21])
def test_external_data_is_mapped_and_read(write, opset) -> None:
    path = write(
        external(linear_model(opset=opset), location="weights.bin", offset="8", length="4800")
    )
    (path.parent / "weights.bin").write_bytes(b"\xff" * 8 + WEIGHT.tobytes())
    read = read_graph(path)
    weight = read.graph.initializers["w"].const_value.numpy()
    assert not weight.flags.owndata
    assert not weight.flags.writeable
    np.testing.assert_array_equal(weight, WEIGHT)
    assert [value.name for value in read.graph.inputs] == ["x"]


def test_a_graph_with_external_data_can_be_written_elsewhere(write, tmp_path, run_plainly) -> None:
    path = write(external(linear_model(), location="weights.bin"))
    (path.parent / "weights.bin").write_bytes(WEIGHT.tobytes())
    made = run_plainly(read_graph(path), {"x": X})["y"]
    np.testing.assert_allclose(made, X @ WEIGHT, rtol=1e-5)


def test_a_small_constant_in_a_file_is_seen_by_the_conversion(write, run_plainly) -> None:
    model = text_model("y = ReduceSum <keepdims = 0> (x, a) ", opset=13)
    model.graph.output[0].type.tensor_type.shape.dim.pop()
    axes = TensorProto(name="a", data_type=TensorProto.INT64, dims=[1])
    axes.data_location = TensorProto.EXTERNAL
    axes.external_data.add(key="location", value="weights.bin")
    model.graph.initializer.append(axes)
    path = write(model)
    (path.parent / "weights.bin").write_bytes(np.array([1]).tobytes())
    np.testing.assert_allclose(run_plainly(read_graph(path), {"x": X})["y"], X.sum(axis=1))


def test_many_small_and_large_weights_in_one_file_are_read(write) -> None:
    model = linear_model()
    data = b""
    del model.graph.initializer[:]
    arrays = {"w": WEIGHT, **{f"s{index}": np.full(3, index, np.float32) for index in range(20)}}
    for name, array in arrays.items():
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        tensor.external_data.add(key="offset", value=str(len(data)))
        model.graph.initializer.append(tensor)
        data += array.tobytes()
    path = write(model)
    (path.parent / "weights.bin").write_bytes(data)
    read = read_graph(path).graph.initializers
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name].const_value.numpy(), array)


def test_external_data_in_a_folder_below_is_read(write) -> None:
    path = write(external(linear_model(), location="inner/weights.bin"))
    (path.parent / "inner").mkdir()
    (path.parent / "inner" / "weights.bin").write_bytes(WEIGHT.tobytes())
    weight = read_graph(path).graph.initializers["w"].const_value
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)


def test_external_data_is_found_from_wherever_it_is_read(write, monkeypatch, tmp_path) -> None:
    path = write(external(linear_model(), location="weights.bin"))
    (path.parent / "weights.bin").write_bytes(WEIGHT.tobytes())
    monkeypatch.chdir(path.parent)
    weight = read_graph(Path("bert.onnx")).graph.initializers["w"].const_value
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)


def test_weights_that_are_listed_as_inputs_are_removed_from_them(write) -> None:
    model = linear_model()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 400]))
    read = read_graph(write(model))
    assert [value.name for value in read.graph.inputs] == ["x"]
    np.testing.assert_array_equal(read.graph.initializers["w"].const_value.numpy(), WEIGHT)


def test_functions_are_inlined(write, run_plainly) -> None:
    model = text_model(
        "y = local.twice (x)",
        opset=17,
        more=', "local" : 1',
        also='<opset_import: ["" : 17], domain: "local"> twice (a) => (b) { b = Add (a, a) }',
    )
    read = read_graph(write(model))
    assert [node.op_type for node in read.graph] == ["Add"]
    assert not read.functions
    np.testing.assert_array_equal(run_plainly(read, {"x": X})["y"], 2 * X)


def test_a_function_of_a_newer_opset_than_the_graph_is_read_or_refused(write) -> None:
    model = text_model(
        "y = local.norm (x)",
        more=', "local" : 1',
        also='<opset_import: ["" : 17], domain: "local"> norm (a) => (b) { b = Add (a, a) }',
    )
    try:
        read = read_graph(write(model))
    except UserInputError as error:
        assert "bert.onnx" in str(error)  # noqa: PT017
    else:
        assert [node.op_type for node in read.graph] == ["Add"]


@pytest.mark.parametrize("opset", [11, 14, 16])
def test_a_layer_normalization_in_a_graph_that_is_older_is_read(write, opset, run_plainly) -> None:
    model = text_model(
        "one = Constant <value = float[3] {1.0, 1.0, 1.0}> () y = LayerNormalization (x, one)",
        opset=opset,
    )
    read = read_graph(write(model))
    node = next(node for node in read.graph if node.op_type == "LayerNormalization")
    assert node.domain == ""
    assert set(read.opset_imports) == {""}
    centered = X - X.mean(axis=1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run_plainly(read, {"x": X})["y"], expected, atol=1e-5)


def test_a_function_that_calls_itself_is_refused(write) -> None:
    model = text_model(
        "y = local.f (x)",
        more=', "local" : 1',
        also='<opset_import: ["" : 14, "local" : 1], domain: "local"> f (a) => (b) '
        "{ b = local.f (a) }",
    )
    assert "'f' calls itself" in refusal(write(model))


def test_metadata_of_the_exporter_is_dropped(write) -> None:
    model = linear_model()
    model.graph.node[0].doc_string = "/home/someone/model.py"
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File /home")
    node = next(iter(read_graph(write(model)).graph))
    assert node.doc_string is None
    assert not node.metadata_props
