from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dreamgym.core.errors import ConflictError, InvalidInputError, ModelMissingError, StorageFullError
from dreamgym.inference.model_store import MARKER, ModelStore, refuse_unsafe_weights


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "objects")


def publish(store: ModelStore, location: str, content: str = "weights") -> None:
    with store.writing(location) as folder:
        (folder / "part").mkdir()
        (folder / "part" / "model.safetensors").write_text(content)


def test_a_folder_is_seen_only_when_it_is_whole(store: ModelStore) -> None:
    with store.writing("models/a") as folder:
        (folder / "model.safetensors").write_text("weights")
        assert not store.exists("models/a")
        assert store.listed("models") == []
        with pytest.raises(ModelMissingError, match="models/a"):
            store.published("models/a")
    assert store.listed("models") == ["models/a"]
    assert (store.published("models/a").path / "model.safetensors").read_text() == "weights"


def test_a_writer_that_fails_leaves_nothing(store: ModelStore) -> None:
    def write_half() -> None:
        with store.writing("models/a") as folder:
            (folder / "model.safetensors").write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        write_half()
    assert not store.exists("models/a")
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_a_folder_without_its_marker_is_torn_and_replaced_by_the_next_writer(store: ModelStore) -> None:
    publish(store, "models/a", "first")
    (store.root / "models/a" / MARKER).unlink()
    assert store.listed("models") == []
    with pytest.raises(ModelMissingError):
        store.published("models/a")
    publish(store, "models/a", "second")
    assert (store.published("models/a").path / "part/model.safetensors").read_text() == "second"


def test_a_published_folder_cannot_be_written_again(store: ModelStore) -> None:
    publish(store, "models/a")
    before = store.published("models/a")
    with pytest.raises(ConflictError, match="immutable"), store.writing("models/a"):
        raise AssertionError("the writer ran")
    assert store.published("models/a") == before


def test_the_hash_is_that_of_names_and_contents(store: ModelStore) -> None:
    for location, content in (("models/a", "x"), ("models/b", "x"), ("models/c", "y")):
        publish(store, location, content)
    hashes = [store.published(f"models/{name}").sha256 for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    assert store.published("models/a").size_bytes == 1


def test_tampering_and_loss_are_found(store: ModelStore) -> None:
    publish(store, "models/a")
    store.verify("models/a")
    file = store.root / "models/a/part/model.safetensors"
    file.write_text("other")
    with pytest.raises(ModelMissingError, match=r"was changed.*model\.safetensors"):
        store.verify("models/a")
    file.unlink()
    with pytest.raises(ModelMissingError, match=r"lost its files.*model\.safetensors"):
        store.published("models/a")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_storage_error_with_a_remedy(store: ModelStore, number: int) -> None:
    with pytest.raises(StorageFullError, match="models/a") as caught, store.writing("models/a"):
        raise OSError(number, os.strerror(number))
    assert "DREAMGYM_OBJECT_STORE" in caught.value.remedy
    assert not store.exists("models/a")


def test_another_fault_of_the_disk_stays_what_it_is(store: ModelStore) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught, store.writing("models/a"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    assert not isinstance(caught.value, StorageFullError)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_weights_that_do_not_fit_are_a_storage_error_too(small_disk: Path) -> None:
    """safetensors reports a full disk as an error of its own, not as an OSError."""
    store = ModelStore(small_disk / "objects")
    with pytest.raises(StorageFullError), store.writing("models/a") as folder:
        save_file({"weights": torch.zeros(100_000)}, folder / "model.safetensors")
    assert not store.exists("models/a")
    publish(store, "models/a", "small")
    store.verify("models/a")


@pytest.mark.parametrize("location", ["../elsewhere", "models/../../elsewhere", "/etc", "models/a\0"])
def test_no_location_leaves_the_store(store: ModelStore, location: str) -> None:
    publish(store, "models/a")
    for use in (store.published, store.exists, store.verify, store.listed, store.remove):
        with pytest.raises(InvalidInputError, match="leaves the object store"):
            use(location)
    with pytest.raises(InvalidInputError), store.writing(location):
        raise AssertionError("the writer ran")
    store.verify("models/a")


def test_a_link_does_not_leave_the_store_either(store: ModelStore, tmp_path: Path) -> None:
    publish(store, "models/a")
    (tmp_path / "outside").mkdir()
    (store.root / "models" / "door").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidInputError), store.writing("models/door/b"):
        raise AssertionError("the writer ran")


@pytest.mark.parametrize("location", ["", ".", "models", "models/a/.."])
def test_a_folder_of_published_folders_is_neither_overwritten_nor_removed(store: ModelStore, location: str) -> None:
    publish(store, "models/a")
    with pytest.raises((InvalidInputError, ConflictError)), store.writing(location) as folder:
        (folder / "model.safetensors").write_text("weights")
    with pytest.raises((InvalidInputError, ConflictError)):
        store.remove(location)
    store.verify("models/a")


def test_a_removed_folder_is_gone_and_its_name_is_free_again(store: ModelStore) -> None:
    publish(store, "models/a")
    store.remove("models/a")
    store.remove("models/never-there")
    assert not store.exists("models/a")
    publish(store, "models/a")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "deep/optimizer.pkl", "MODEL.PTH", "x.ckpt"])
def test_weights_that_can_run_code_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidInputError, match=Path(name).name):
        refuse_unsafe_weights(tmp_path)


def test_safetensors_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuse_unsafe_weights(tmp_path)
