"""A graph's file: tensors that are kept elsewhere are found wherever and however they are written."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from export.contract.graph_file import HOLDERS, check_self_contained, check_weights_within
from export.contract.manifest import BundleError, newest_version
from tests.support.tiny_bundle import decoder_model, encoder_model

FILE = "encoder.onnx"
MESSAGES = {
    "model": onnx.ModelProto,
    "training": onnx.TrainingInfoProto,
    "function": onnx.FunctionProto,
    "graph": onnx.GraphProto,
    "node": onnx.NodeProto,
    "attribute": onnx.AttributeProto,
    "sparse tensor": onnx.SparseTensorProto,
    "tensor": onnx.TensorProto,
}


def far_tensor() -> TensorProto:
    """Values that lie in another file."""
    tensor = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[3, 4])
    tensor.external_data.add(key="location", value="/etc/passwd")
    tensor.data_location = TensorProto.EXTERNAL
    return tensor


def in_an_initializer() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.graph.initializer.append(far_tensor())
    return model


def in_a_constant() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.graph.node.append(helper.make_node("Constant", [], ["weights"], value=far_tensor()))
    return model


def in_a_list_of_tensors() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.graph.node.add().attribute.add().tensors.append(far_tensor())
    return model


def in_a_branch() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.graph.node.append(helper.make_node("If", ["yes"], ["out"], then_branch=in_a_constant().graph))
    return model


def in_a_function() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.functions.add().node.append(in_a_constant().graph.node[0])
    return model


def in_a_training_graph() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.training_info.add().initialization.CopyFrom(in_an_initializer().graph)
    return model


def in_a_sparse_tensor() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.graph.sparse_initializer.add().values.CopyFrom(far_tensor())
    return model


PLACES = (
    in_an_initializer,
    in_a_constant,
    in_a_list_of_tensors,
    in_a_branch,
    in_a_function,
    in_a_training_graph,
    in_a_sparse_tensor,
)


def field(tag: bytes, content: bytes) -> bytes:
    """A field of bytes as protobuf writes it, shorter than 128."""
    return tag + bytes([len(content)]) + content


def with_tensor(tensor: bytes) -> bytes:
    """A model whose one initializer is written so."""
    return field(b"\x3a", field(b"\x2a", tensor))


@pytest.mark.parametrize("model", PLACES, ids=lambda place: place.__name__)
def test_a_tensor_kept_elsewhere_is_found_wherever_it_stands(model):
    with pytest.raises(BundleError, match=r"encoder\.onnx keeps tensors in other files"):
        check_self_contained(model().SerializeToString(), FILE)


@pytest.mark.parametrize(
    "tensor",
    [
        b"\x70\x01",
        b"\xf0\x00\x01",  # the tag longer than it needs to be
        b"\xf0\x80\x80\x80\x00\x01",
        b"\x70\x81\x80\x00",  # the value
        b"\x70\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00",
        b"\x70\x00\x70\x01",  # the last one counts
        b"\x70\x01\x6a\x0e\x0a\x88\x00location\x12\x01w",  # its file's name under a key with a longer length
    ],
)
def test_a_tensor_kept_elsewhere_is_found_however_it_is_encoded(tensor):
    content = with_tensor(tensor)
    read = onnx.ModelProto.FromString(content).graph.initializer[0]
    assert read.data_location == TensorProto.EXTERNAL  # and not only by us
    with pytest.raises(BundleError, match="external data"):
        check_self_contained(content, FILE)


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"])
@pytest.mark.parametrize("file", ["encoder.onnx", "decoder.onnx"])
def test_shipped_graphs_hold_all_that_is_theirs(model, file):
    check_self_contained((newest_version(Path("models") / model) / file).read_bytes(), file)


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"])
def test_shipped_explain_graphs_read_weights_of_their_encoder_alone(model):
    bundle = newest_version(Path("models") / model)
    content, size = (bundle / "explain.onnx").read_bytes(), (bundle / "encoder.onnx").stat().st_size
    check_weights_within(content, "explain.onnx", FILE, size)
    with pytest.raises(BundleError, match=r"explain\.onnx keeps tensors in other files"):
        check_self_contained(content, "explain.onnx")


def borrowed(
    location: str = FILE, offset: str = "8", kind: int = TensorProto.FLOAT, dims: tuple[int, ...] = (3, 4)
) -> onnx.ModelProto:
    """A graph whose weights are in another file."""
    model, tensor = onnx.ModelProto(), TensorProto(name="weights", data_type=kind, dims=dims)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value=offset)
    tensor.data_location = TensorProto.EXTERNAL
    model.graph.initializer.append(tensor)
    return model


def test_weights_may_end_where_the_other_file_ends():
    check_weights_within(borrowed().SerializeToString(), "explain.onnx", FILE, 8 + 48)


@pytest.mark.parametrize(
    "model",
    [
        borrowed(location="/etc/passwd"),
        borrowed(location="decoder.onnx"),
        borrowed(location="../1/encoder.onnx"),
        borrowed(offset="9"),  # 1 byte too far
        borrowed(offset="-8"),
        borrowed(dims=(-3, 4)),
        borrowed(kind=TensorProto.INT64),
        in_a_constant(),
        in_a_branch(),
    ],
    ids=str,
)
def test_weights_anywhere_else_are_refused(model):
    with pytest.raises(BundleError, match=r"explain\.onnx keeps tensors elsewhere than in encoder\.onnx"):
        check_weights_within(model.SerializeToString(), "explain.onnx", FILE, 8 + 48)


def test_a_note_that_a_second_one_takes_back_is_refused():
    """Readers may take either."""
    content = with_tensor(b"\x70\x01\x70\x00")
    with pytest.raises(BundleError, match="elsewhere"):
        check_weights_within(content, "explain.onnx", FILE, 100)


@pytest.mark.parametrize("offset", ["", "eight"])
def test_weights_without_a_place_are_refused(offset):
    with pytest.raises(BundleError, match="does not say where the values of 'weights' are"):
        check_weights_within(borrowed(offset=offset).SerializeToString(), "explain.onnx", FILE, 100)


@pytest.mark.parametrize("entry", [b"", b"\x0a\x08location", b"\x0a\x08location\x12\x01\xff", b"\x12\x01x"])
def test_a_place_that_cannot_be_read_is_refused(entry):
    content = with_tensor(b"\x70\x01\x6a" + bytes([len(entry)]) + entry)
    with pytest.raises(BundleError, match="does not say where the values of '' are"):
        check_weights_within(content, "explain.onnx", FILE, 100)


def test_weights_and_names_that_look_like_a_place_are_none():
    model = encoder_model(np.random.default_rng(0), 3, 4)
    model.graph.doc_string = "\x08location"
    model.graph.initializer.append(
        numpy_helper.from_array(np.frombuffer(b"\x70\x01" * 64, np.uint8), "p\x01")
    )
    check_self_contained(model.SerializeToString(), FILE)


def messages_in(message: Descriptor) -> dict[int, Descriptor]:
    return {one.number: one.message_type for one in message.fields if one.message_type}


def test_the_table_of_messages_is_the_one_of_onnx():
    """Every message that may hold a tensor is looked into, in the version of onnx that is installed."""
    kinds = {message.DESCRIPTOR: kind for kind, message in MESSAGES.items()}
    seen, new = set(), {onnx.ModelProto.DESCRIPTOR}
    while new:
        seen |= new
        new = {inner for message in new for inner in messages_in(message).values()} - seen
    assert seen > kinds.keys()
    for message in seen:
        found = {number: kinds[inner] for number, inner in messages_in(message).items() if inner in kinds}
        assert found == (HOLDERS[kinds[message]] if message in kinds else {})


@given(st.binary(max_size=64))
def test_any_bytes_pass_or_are_a_fault_of_the_bundle(content):
    with suppress(BundleError):
        check_self_contained(content, FILE)


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_graph_that_is_cut_off_is_refused(cut):
    content = decoder_model(np.random.default_rng(0), 3, 4).SerializeToString()
    with pytest.raises(BundleError, match=r"encoder\.onnx is no ONNX graph"):
        check_self_contained(content[:-cut], FILE)
