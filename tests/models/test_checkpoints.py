"""Checkpoints: what PyTorch wrote comes back, and nothing that a file names is run."""

import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from largeprompt.models import read_checkpoint


def _saved(tmp_path, thing, **options):
    path = tmp_path / "model.pt"
    torch.save(thing, path, **options)
    return path


def _zipped(path, pickled, **members):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, data in members.items():
            archive.writestr(f"archive/{name.replace('_', '/')}", data)
    return path


@pytest.mark.parametrize("protocol", [2, 4])
def test_read_checkpoint_returns_the_tensors_and_containers(tmp_path, protocol):
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "plain": base,
        "transposed": base.T,
        "part": base[1:, ::2],
        "expanded": base[0].expand(3, 6),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "half": base.half(),
        "brain": base.bfloat16(),
        "long": torch.tensor([2**40, -1]),
        "int": torch.tensor([1, -2], dtype=torch.int32),
        "bool": torch.tensor([True, False]),
        "byte": torch.tensor([0, 255], dtype=torch.uint8),
    }
    plain = {"a": [1, -3, 2.5, True, None], "b": (("x",), (1, 2), (1, 2, 3, 4)), 5: 2**70, "é": {}}
    long_list = list(range(2000))
    saved = _saved(tmp_path, (OrderedDict(tensors), plain, long_list), pickle_protocol=protocol)
    state, containers, numbers = read_checkpoint(saved)
    assert (containers, numbers) == (plain, long_list)
    assert list(state) == list(tensors)
    for name, tensor in tensors.items():
        wanted = tensor.float().numpy() if name == "brain" else tensor.numpy()
        np.testing.assert_array_equal(state[name].astype(wanted.dtype), wanted)
        assert str(state[name].dtype) == str(tensor.dtype).removeprefix("torch.")
        assert not state[name].flags.writeable or not state[name].size


def test_read_checkpoint_of_a_state_dict(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    state = read_checkpoint(_saved(tmp_path, module.state_dict()))
    assert isinstance(state, OrderedDict)
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(state[name], tensor.numpy())


class _Command:
    """A pickle of this would run a command when it is loaded."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_read_checkpoint_runs_no_command(tmp_path, protocol):
    """The control: plain pickle does run it."""
    target = tmp_path / "was_here"
    pickled = pickle.dumps({"weights": _Command(f"touch {target}")}, protocol)
    with pytest.raises(ValueError, match="tensors and plain containers"):
        read_checkpoint(_zipped(tmp_path / "hostile.pt", pickled))
    assert not target.exists()
    pickle.loads(pickled)
    assert target.exists()


def _nested(levels=60):
    """A tuple of tuples, each twice in the next: 2^60 entries to hash or to print."""
    pairs = (b"h%c\x86q%c" % (level, level + 1) for level in range(levels))
    return b")q\x00" + b"".join(pairs)


HOSTILE = {
    "key of nested tuples": (b"\x80\x02}" + _nested() + b"K\x01s.", "a key of type tuple"),
    "pairs with such a key": (
        b"\x80\x02ccollections\nOrderedDict\n]" + _nested() + b"K\x01\x86a\x85R.",
        "a key of type tuple",
    ),
    "storage of such a key": (
        b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + _nested() + b"NK\x01tQ.",
        "tuple where str belongs",
    ),
    "name that is no text": (
        b"\x80\x04" + _nested() + b"\x8c\x01a\x93.",
        "tuple where str belongs",
    ),
    "name of a module": (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
    "name on the stack": (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", r"builtins\.eval"),
    "old instance": (b"(S'true'\nios\nsystem\n.", "instruction"),
    "new object": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "instruction NEWOBJ"),
    "extension": (b"\x80\x02\x82\x01.", "instruction EXT1"),
    "call of a string": (b"\x80\x02X\x01\x00\x00\x00a)R.", "it calls str"),
    "state of a list": (b"\x80\x02]}b.", "list where OrderedDict belongs"),
    "tensor of text": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(X\x01\x00\x00\x00aK\x00K\x01\x85K\x01\x85tR.",
        "str where ndarray belongs",
    ),
    "empty stack": (b"\x80\x02.", "ValueError"),
    "no end": (b"\x80\x02K\x01", "ValueError"),
    "not a pickle": (b"\xff\xfe", "ValueError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_read_checkpoint_rejects(tmp_path, name):
    pickled, reason = HOSTILE[name]
    with pytest.raises(ValueError, match=reason) as caught:
        read_checkpoint(_zipped(tmp_path / "hostile.pt", pickled))
    text = str(caught.value)
    assert "\n" not in text
    assert "; received " in text
    assert ". To fix: " in text


def test_read_checkpoint_rejects_modules(tmp_path):
    with pytest.raises(
        ValueError, match=r"asks for torch\.nn\.modules\.linear\.Linear.*state_dict"
    ):
        read_checkpoint(_saved(tmp_path, torch.nn.Linear(2, 2)))


def test_read_checkpoint_rejects_truncated_and_altered_files(tmp_path):
    data = _saved(tmp_path, {"w": torch.arange(100.0), "names": ["a"] * 20}).read_bytes()
    assert read_checkpoint(tmp_path / "model.pt")["names"] == ["a"] * 20
    path = tmp_path / "bad.pt"
    for kept in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(ValueError, match="fetch or save the file again"):
            read_checkpoint(path)
    numbers = np.arange(100, dtype=np.float32).tobytes()
    for place in (data.index(numbers) + 5, data.index(b"names")):
        path.write_bytes(data[:place] + b"~" + data[place + 1 :])
        with pytest.raises(ValueError, match="fetch or save the file again") as caught:
            read_checkpoint(path)
        assert "\n" not in str(caught.value)


def _tensor(offset, shape, stride, numbers):
    """A pickle of one float32 tensor, written by hand."""

    def integer(n):
        return b"J" + n.to_bytes(4, "little", signed=True)

    def text(word):
        return b"X" + len(word).to_bytes(4, "little") + word

    def sizes(part):
        return b"(" + b"".join(map(integer, part)) + b"t"

    name = b"ctorch\nFloatStorage\n"
    storage = b"(" + text(b"storage") + name + text(b"0") + text(b"cpu") + integer(numbers) + b"tQ"
    view = integer(offset) + sizes(shape) + sizes(stride)
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"tR."


def test_read_checkpoint_keeps_tensors_inside_their_storage(tmp_path):
    numbers = np.arange(4, dtype=np.float32)

    def read(offset, shape, stride, size=4):
        pickled = _tensor(offset, shape, stride, size)
        path = _zipped(tmp_path / "one.pt", pickled, data_0=numbers.tobytes())
        return read_checkpoint(path)

    np.testing.assert_array_equal(read(1, (2,), (2,)), [1, 3])
    outside = [(3, (2,), (1,)), (0, (2, 2), (3, 1))]
    impossible = [(-1, (2,), (1,)), (0, (-2,), (1,)), (3, (2,), (-1,)), (0, (2, 1), (1,))]
    for offset, shape, stride in outside + impossible:
        with pytest.raises(ValueError, match=r"beyond the end|impossible shape"):
            read(offset, shape, stride)
    with pytest.raises(ValueError, match="has 16 bytes, and not 5 numbers"):
        read(0, (5,), (1,), size=5)


def test_read_checkpoint_rejects_other_archives(tmp_path):
    path = tmp_path / "other.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/other", b"")
    with pytest.raises(ValueError, match=r"0 members are called data\.pkl"):
        read_checkpoint(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
    with pytest.raises(ValueError, match="is compressed"):
        read_checkpoint(path)
    with pytest.raises(ValueError, match="not little-endian"):
        read_checkpoint(_zipped(path, pickle.dumps({}, 2), byteorder=b"big"))
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        read_checkpoint(tmp_path / "none.pt")


def test_read_checkpoint_of_safetensors(tmp_path):
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float16)}
    path = tmp_path / "model.safetensors"
    save_file(arrays, path)
    found = read_checkpoint(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="fetch or save the file again"):
        read_checkpoint(path)
