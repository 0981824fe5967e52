"""Checkpoints of PyTorch: what it wrote comes back, and nothing that a file names is called."""

import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors import safe_open

from largeprompt.models.checkpoints import keep_as_safetensors, read_checkpoint


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
        "long": torch.tensor([2**40, -1]),
        "int": torch.tensor([1, -2], dtype=torch.int32),
        "bool": torch.tensor([True, False]),
    }
    plain = {"a": [1, -3, 2.5, True, None], "b": (("x",), (1, 2), (1, 2, 3, 4)), 5: 2**70, "é": {}}
    saved = _saved(tmp_path, (OrderedDict(tensors), plain), pickle_protocol=protocol)
    state, containers = read_checkpoint(saved)
    assert containers == plain
    assert list(state) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(state[name], tensor.numpy())
        assert state[name].dtype == tensor.numpy().dtype
        assert not state[name].flags.writeable


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
    with pytest.raises(ValueError, match=r"names (posix|nt)\.system, which was not imported"):
        read_checkpoint(_zipped(tmp_path / "hostile.pt", pickled))
    assert not target.exists()
    pickle.loads(pickled)
    assert target.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02ctorch\nload\n.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n.",
        b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x02X\x01\x00\x00\x00a)R.",  # calls text
        b"\x80\x02.",
        b"\x80\x02K\x01",
        b"\xff\xfe",
    ],
)
def test_read_checkpoint_rejects_other_pickles_in_one_line(tmp_path, pickled):
    with pytest.raises(ValueError, match="tensors and plain containers; received") as caught:
        read_checkpoint(_zipped(tmp_path / "hostile.pt", pickled))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "thing",
    [
        torch.nn.Linear(2, 2),
        torch.zeros(2).to(torch.float8_e4m3fn),
        torch.zeros(1, dtype=torch.uint16),
    ],
)
def test_read_checkpoint_names_what_it_does_not_know(tmp_path, thing):
    """A module, and tensors of types that NumPy does not have or that are rare."""
    with pytest.raises(ValueError, match=r"names torch[.\w]*, which was not imported"):
        read_checkpoint(_saved(tmp_path, thing))


def test_read_checkpoint_rejects_truncated_and_altered_files(tmp_path):
    data = _saved(tmp_path, {"w": torch.arange(100.0), "names": ["a"] * 20}).read_bytes()
    path = tmp_path / "bad.pt"
    for kept in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(ValueError, match=r"must be a torch\.save file"):
            read_checkpoint(path)
    place = data.index(np.arange(100, dtype=np.float32).tobytes()) + 5
    path.write_bytes(data[:place] + b"~" + data[place + 1 :])
    with pytest.raises(ValueError, match="Bad CRC-32"):
        read_checkpoint(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
    with pytest.raises(ValueError, match="compressed members"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        read_checkpoint(tmp_path / "none.pt")


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
        with pytest.raises(ValueError, match=r"outside of its storage|zip\(\) argument"):
            read(offset, shape, stride)
    with pytest.raises(ValueError, match="buffer is smaller"):
        read(0, (5,), (1,), size=5)


def test_keep_as_safetensors_has_the_tensors_and_the_number_of_heads(tmp_path):
    state = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.ones(2)}
    path = _saved(tmp_path, (OrderedDict(state), None, {"nhead": 2, "sampler": "<function>"}))
    keep_as_safetensors(path)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"nhead": "2"}
        for name, tensor in state.items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor.numpy())
