"""Files named by users: their permissions, links to them, and what happens on errors."""

import os
from pathlib import Path

import pytest

from largeprompt._files import atomic_write, check_target


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as name:
        Path(name).write_text(text, encoding="utf-8")


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_atomic_write_of_a_new_file_has_the_permissions_of_open(tmp_path, umask):
    before = os.umask(umask)
    try:
        _write(tmp_path / "a.txt", "new")
        (tmp_path / "b.txt").write_text("new", encoding="utf-8")
    finally:
        os.umask(before)
    assert _mode(tmp_path / "a.txt") == _mode(tmp_path / "b.txt") == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_atomic_write_keeps_the_permissions_of_a_file(tmp_path, mode):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    path.chmod(mode)
    seen = []
    with atomic_write(path) as name:
        seen.append(_mode(Path(name)))  # also while it is written
        Path(name).chmod(0o600)
        Path(name).write_text("new", encoding="utf-8")
        Path(name).chmod(mode)
    assert path.read_text(encoding="utf-8") == "new"
    assert [_mode(path), *seen] == [mode, mode]


def test_atomic_write_follows_links(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "a.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for text in ("first", "second"):  # the link dangles at first
        _write(link, text)
        assert link.is_symlink()
        assert target.read_text(encoding="utf-8") == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "folder", "link.txt"]


def test_atomic_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def interrupted():
        with atomic_write(path) as name:
            Path(name).write_text("half", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_check_target_names_what_is_wrong(tmp_path):
    (tmp_path / "folder.nc").mkdir()
    check_target(tmp_path / "a.nc", "data", (".nc",))
    for path, rule in (
        (tmp_path / "a.gif", "must end in one of .nc"),
        (tmp_path / "no" / "a.nc", "the folder of a data file must exist"),
        (tmp_path / "folder.nc", "must be one that can be written"),
    ):
        with pytest.raises(ValueError, match=rule):
            check_target(path, "data", (".nc",))
