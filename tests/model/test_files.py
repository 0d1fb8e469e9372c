"""Weights at rest: number formats, headers that lie, shards and their index, pickles."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pathexpand.errors import FileError, ModelError, PathExpandError
from pathexpand.model.checkpoint import read_checkpoint
from pathexpand.model.tensors import INDEX, read_file, read_shards

FAMILIES = FilePath(__file__).parents[1] / "reference" / "families"
Header = dict[str, Any]


def write(file: FilePath, header: object, data: bytes) -> FilePath:
    """Write a file of the safetensors form: length of the header, header, numbers."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def entry(kind: str, shape: list[int], start: int, stop: int) -> Header:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


def one_line(kind: type[PathExpandError], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_numbers_are_mapped_as_they_are(kind: str, tmp_path: FilePath) -> None:
    numbers = np.arange(12, dtype=kind).reshape(3, 4) / 8
    save_file({"w": numbers, "none": numbers[:0]}, tmp_path / "w.safetensors")
    found = read_file(tmp_path / "w.safetensors")
    opened = found["w"].open()
    assert (opened.dtype, opened.tolist()) == (np.dtype(kind), numbers.tolist())
    assert not opened.flags.writeable
    assert found["none"].open().shape == (0, 4)


def test_bfloat16(tmp_path: FilePath) -> None:
    """Pitfall 33: bf16 has no numpy dtype; 0x3FC0 is 1.5, 0xC040 is -3."""
    raw = np.array([0x3FC0, 0xC040, 0x0001, 0x7F7F], dtype="<u2")
    header = {"w": entry("BF16", [2, 2], 0, 8), "__metadata__": {"format": "pt"}}
    found = read_file(write(tmp_path / "b.safetensors", header, raw.tobytes()))["w"].open()
    wide = found.astype(np.float64)
    assert wide.shape == (2, 2)
    assert wide[0].tolist() == [1.5, -3.0]
    assert wide[1, 0] == 2.0**-133
    assert wide[1, 1] == np.float32(3.3895314e38)


def test_numbers_that_are_not_aligned(tmp_path: FilePath) -> None:
    data = b"\1" + np.array([1.5, -2.0]).tobytes()
    header = {"b": entry("BOOL", [1], 0, 1), "w": entry("F64", [2], 1, 17)}
    found = read_file(write(tmp_path / "w.safetensors", header, data))
    assert found["w"].open().tolist() == [1.5, -2.0]


# --- headers --------------------------------------------------------------------------------------

GOOD = {"w": entry("F32", [2], 0, 8), "v": entry("F32", [1], 8, 12)}
BAD: dict[str, tuple[object, bytes]] = {
    "no JSON": (b"{", bytes(12)),
    "no UTF-8": (b"\xff\xfe{}", bytes(12)),
    "a list": ([1], bytes(12)),
    "deep": (b"[" * 100_000, bytes(12)),
    "a name twice": (b'{"w": {}, "w": {}}', b""),
    "no dtype": ({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "a number": ({"w": 3}, bytes(8)),
    "no list as shape": ({"w": entry("F32", 2, 0, 8)}, bytes(8)),  # type: ignore[arg-type]
    "a negative shape": ({"w": entry("F32", [-2], 0, 8)}, bytes(8)),
    "a broken shape": ({"w": entry("F32", [2.0], 0, 8)}, bytes(8)),  # type: ignore[list-item]
    "true as shape": ({"w": entry("F32", [True], 0, 4)}, bytes(4)),
    "three offsets": (
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}},
        bytes(8),
    ),
    "offsets backwards": ({"w": entry("F32", [2], 8, 0)}, bytes(8)),
    "too large a shape": ({"w": entry("F32", [3], 0, 8)}, bytes(8)),
    "too large a shape for any": ({"w": entry("F32", [2**62, 2**62], 0, 8)}, bytes(8)),
    "another size": ({"w": entry("F16", [2], 0, 8)}, bytes(8)),
    "an overlap": ({"w": entry("F32", [2], 0, 8), "v": entry("F32", [2], 4, 12)}, bytes(12)),
    "a gap": ({"w": entry("F32", [2], 4, 12)}, bytes(12)),
    "beyond the file": ({"w": entry("F32", [2], 0, 8)}, bytes(4)),
    "bytes left over": ({"w": entry("F32", [2], 0, 8)}, bytes(12)),
}


def test_the_file_that_the_bad_ones_are_made_from_is_read(tmp_path: FilePath) -> None:
    found = read_file(write(tmp_path / "w.safetensors", GOOD, bytes(12)))
    assert {name: each.shape for name, each in found.items()} == {"w": (2,), "v": (1,)}


@pytest.mark.parametrize("name", BAD)
def test_headers_that_do_not_fit_the_file(name: str, tmp_path: FilePath) -> None:
    file = write(tmp_path / "w.safetensors", *BAD[name])
    one_line(FileError, r"wanted a whole \.safetensors file, got", lambda: read_file(file))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 1000])
def test_headers_that_say_they_are_huge(length: int, tmp_path: FilePath) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(struct.pack("<Q", length) + b'{"w": 1}')
    one_line(FileError, "header of", lambda: read_file(file))


@pytest.mark.parametrize("kept", [0, 4, 8, 60, -1])
def test_files_cut_short(kept: int, tmp_path: FilePath) -> None:
    save_file({"w": np.ones((9, 9))}, tmp_path / "w.safetensors")
    file = tmp_path / "w.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    one_line(FileError, r"wanted a whole \.safetensors file", lambda: read_file(file))


def test_a_file_that_shrinks_after_it_was_read(tmp_path: FilePath) -> None:
    save_file({"w": np.ones((9, 9))}, tmp_path / "w.safetensors")
    found = read_file(tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"")
    one_line(FileError, r"wanted a whole \.safetensors file", lambda: found["w"].open())


def test_formats_that_hold_no_plain_numbers(tmp_path: FilePath) -> None:
    """Pitfall 33: packed weights are refused by name."""
    for kind in ("F8_E4M3", "F8_E5M2", "F4", "Q4_K"):
        header = {"w": entry(kind, [8], 0, 8)}
        found = read_file(write(tmp_path / "w.safetensors", header, bytes(8)))
        one_line(ModelError, f"tensor w: wanted .*, got {kind}", lambda f=found: f["w"].open())


# --- shards ---------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: FilePath) -> FilePath:
    for file in (FAMILIES / "llama-sharded").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "golden.safetensors").unlink()
    return tmp_path


def test_shards_are_read(sharded: FilePath) -> None:
    assert read_checkpoint(sharded).config.n_layers == 2
    assert len({each.file for each in read_shards(sharded / INDEX).values()}) > 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "wanted an index as JSON"),
        ("{", "wanted an index as JSON"),
        ("[" * 100_000, "wanted an index as JSON"),
        ("[]", 'under "weight_map"'),
        ("{}", 'under "weight_map"'),
        ('{"weight_map": 3}', 'under "weight_map"'),
        ('{"weight_map": {}}', 'under "weight_map"'),
        ('{"weight_map": {"w": 3}}', "names of files beside it, got 3"),
        ('{"weight_map": {"w": "../w.safetensors"}}', "names of files beside it"),
        ('{"weight_map": {"w": "/etc/passwd"}}', "names of files beside it"),
        ('{"weight_map": {"w": "a\\\\w.safetensors"}}', "names of files beside it"),
        ('{"weight_map": {"w": ""}}', "names of files beside it"),
        ('{"weight_map": {"w": "gone.safetensors"}}', r"file gone\.safetensors it names, got no"),
    ],
)
def test_a_broken_index(text: str, message: str, sharded: FilePath) -> None:
    (sharded / INDEX).write_text(text, encoding="utf-8")
    one_line(FileError, message, lambda: read_checkpoint(sharded))


def test_a_missing_shard(sharded: FilePath) -> None:
    gone = sorted(sharded.glob("model-*.safetensors"))[1]
    gone.unlink()
    one_line(
        FileError,
        f"the file {gone.name} it names",
        lambda: read_checkpoint(sharded),
    )


def test_a_shard_that_is_a_pickle(sharded: FilePath) -> None:
    raw = json.loads((sharded / INDEX).read_text(encoding="utf-8"))
    first = next(iter(raw["weight_map"]))
    raw["weight_map"][first] = "weights.bin"
    (sharded / INDEX).write_text(json.dumps(raw), encoding="utf-8")
    (sharded / "weights.bin").write_bytes(b"\x80\x04")
    one_line(FileError, "pickles are never loaded", lambda: read_checkpoint(sharded))


def test_a_tensor_that_is_not_in_its_shard(sharded: FilePath) -> None:
    raw = json.loads((sharded / INDEX).read_text(encoding="utf-8"))
    names = sorted(raw["weight_map"])
    shards = sorted(set(raw["weight_map"].values()))
    moved = next(name for name in names if raw["weight_map"][name] == shards[0])
    raw["weight_map"][moved] = shards[1]
    (sharded / INDEX).write_text(json.dumps(raw), encoding="utf-8")
    one_line(
        FileError,
        rf"{shards[1]}: wanted {moved}, as {INDEX} says, got no such tensor",
        lambda: read_checkpoint(sharded),
    )


def test_a_damaged_shard(sharded: FilePath) -> None:
    file = sorted(sharded.glob("model-*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:-1])
    one_line(FileError, f"{file.name}: wanted a whole", lambda: read_checkpoint(sharded))


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_refused_with_the_way_to_convert_them(name: str, tmp_path: FilePath) -> None:
    shutil.copy(FAMILIES / "llama" / "config.json", tmp_path)
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n")
    for place in (tmp_path, tmp_path / name):
        one_line(
            FileError,
            "pickles are never loaded; convert it with: python -c",
            lambda p=place: read_checkpoint(p),
        )


def test_one_file_of_several(sharded: FilePath) -> None:
    whole = shutil.copy(
        FAMILIES / "llama-tied" / "model.safetensors", sharded / "other.safetensors"
    )
    assert read_checkpoint(sharded).config.n_layers == 2  # the index counts
    shutil.copy(FAMILIES / "llama-tied" / "config.json", sharded)
    (sharded / INDEX).unlink()
    one_line(FileError, "or an index called", lambda: read_checkpoint(sharded))
    assert read_checkpoint(whole).config.n_layers == 2
    shutil.copy(whole, sharded / "model.safetensors")
    assert read_checkpoint(sharded).digest() == read_checkpoint(whole).digest()
