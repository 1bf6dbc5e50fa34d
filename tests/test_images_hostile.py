"""Images that are not what they should be: each is one line that names the file, and no run is begun."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerrope.cli import main
from layerrope.errors import InputError
from layerrope.vision.images import ImageConfig, ImageData, load_images

IMAGES = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
LABELS = np.arange(40) % 3
pictures = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="Pillow is not installed")


def arrays(**changes: Any) -> Callable[[Path], None]:
    """Writes an .npz file with these arrays in place of good ones; None leaves one out."""

    def write(path: Path) -> None:
        held = {"images": IMAGES, "labels": LABELS} | changes
        np.savez(path, **{name: value for name, value in held.items() if value is not None})

    return write


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Writes a good .npz file whose bytes went through `change`."""

    def write(path: Path) -> None:
        made = io.BytesIO()
        np.savez(made, images=IMAGES, labels=LABELS)
        path.write_bytes(change(made.getvalue()))

    return write


def bomb(path: Path) -> None:
    """A member whose header promises a tebibyte."""
    header = io.BytesIO()
    shape = (1 << 20, 1 << 10, 1 << 10)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(1000))
        archive.writestr("labels.npy", header.getvalue())


def plain_array(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, IMAGES)


ARRAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (content(lambda b: b[: len(b) // 2]), "is no .npz file"),
    "nothing": (content(lambda b: b""), "is no .npz file"),
    "one array": (plain_array, "is no .npz file"),
    "a changed byte": (content(lambda b: b[:400] + bytes([b[400] ^ 255]) + b[401:]), "cannot read arrays"),
    "a promise of a tebibyte": (bomb, "(do not fit into memory|cannot read arrays)"),
    "objects": (arrays(images=np.array([None, 1], dtype=object)), "cannot read arrays"),
    "no labels": (arrays(labels=None), "has no array 'labels'"),
    "floats": (arrays(images=IMAGES / 255), "it takes uint8"),
    "oblong": (arrays(images=IMAGES[:, :7]), "square"),
    "no pixels": (arrays(images=IMAGES[:, :0, :0]), "it takes uint8"),
    "no channels": (arrays(images=np.zeros((40, 8, 8, 0), np.uint8)), "it takes uint8"),
    "numbers": (arrays(images=np.uint8(3), labels=np.int64(3)), "it takes uint8"),
    "no images": (arrays(images=IMAGES[:0], labels=LABELS[:0]), "too few to hold out"),
    "one image": (arrays(images=IMAGES[:1], labels=LABELS[:1]), "too few to hold out"),
    "labels below 0": (arrays(labels=LABELS - 1), "count from 0"),
    "labels of another number": (arrays(labels=LABELS[:5]), "one whole number for each"),
    "one class": (arrays(labels=0 * LABELS), "of one class"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_cannot_be_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, says = ARRAYS[name]
    path = tmp_path / "images.npz"
    write(path)
    with pytest.raises(InputError, match=says):
        load_images(ImageConfig(str(path)))
    assert main(["vision", "--data", str(path), "--out", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr()
    assert (said.err.count("\n"), said.out) == (1, "")
    assert "images.npz" in said.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("source", ["", "missing", "missing.npz"])
def test_a_source_that_is_not_there(source: str) -> None:
    with pytest.raises(InputError, match="no images at"):
        load_images(ImageConfig(source))


def test_a_shift_that_leaves_nothing_of_an_image() -> None:
    with pytest.raises(InputError, match="out of sight"):
        load_images(ImageConfig(shift=8))
    assert load_images(ImageConfig(shift=7)).n_train == 1438


def test_images_of_one_pixel_are_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Channels, size and classes are those of the data."""
    arrays(images=IMAGES[:, :1, :1])(tmp_path / "dots.npz")
    words = [
        "--data",
        str(tmp_path / "dots.npz"),
        "--patch-size",
        "1",
        "--n-layer",
        "1",
        "--steps",
        "1",
        "--shift",
        "0",
    ]
    assert main(["vision", "--schemes", "prenorm", "--seeds", "1", *words, "--out", str(tmp_path / "runs")]) == 0
    assert "Best accuracy: prenorm" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------------ pictures
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of six pictures, and what file browsers leave behind."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(6):
            image.new("RGB", (20 + i, 30), (i * 30, 0, 200 * (name == "a"))).save(tmp_path / "set" / name / f"{i}.png")
    (tmp_path / "set" / "a" / "._0.png").write_text("x")
    (tmp_path / "set" / "a" / "notes.txt").write_text("x")
    (tmp_path / "set" / ".cache").mkdir()
    return tmp_path / "set"


@pictures
def test_a_folder_is_read_by_class_and_turned_upright(folder: Path) -> None:
    from PIL import Image

    found = load_images(ImageConfig(str(folder), 8))
    assert isinstance(found, ImageData)
    assert (found.n_class, found.image_shape, found.n_train) == (2, (3, 8, 8), 10)
    turned = Image.new("RGB", (8, 8))
    turned.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned.save(folder / "a" / "turned.png", exif=exif)
    from layerrope.vision.images import _read_picture

    assert _read_picture(folder / "a" / "turned.png", 8)[7, 7, 0] == 255


def _cut(folder: Path) -> None:
    path = folder / "a" / "1.png"
    path.write_bytes(path.read_bytes()[:60])


def _sixteen(folder: Path) -> None:
    from PIL import Image

    Image.new("I;16", (9, 9)).save(folder / "b" / "deep.png")


def _huge(folder: Path) -> None:
    from PIL import Image

    Image.new("1", (14_000, 14_000)).save(folder / "a" / "big.png")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (_cut, "1.png is not a picture"),
    "not a picture": (lambda f: (f / "a" / "x.jpg").write_text("x"), "x.jpg is not a picture"),
    "a link to nothing": (lambda f: (f / "a" / "gone.png").symlink_to("nowhere"), "gone.png is not a picture"),
    "a folder of that name": (lambda f: (f / "a" / "dir.png").mkdir(), "dir.png is not a picture"),
    "sixteen bits": (_sixteen, "deep.png has more than 8 bits"),
    "very many pixels": (_huge, "big.png is not a picture"),
    "a class without pictures": (lambda f: (f / "c").mkdir(), "c, which would be a class"),
    "control characters": (lambda f: (f / "a" / "\x1b[31mred\n.png").write_text("x"), "is not a picture"),
}


@pictures
@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_folder_is_one_line(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, says = SPOILT[name]
    spoil(folder)
    assert main(["vision", "--data", str(folder), "--out", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert "\x1b" not in said.err
    assert not (tmp_path / "runs").exists()


@pictures
def test_a_folder_without_classes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one folder for each class"):
        load_images(ImageConfig(str(tmp_path), 8))
    with pytest.raises(InputError, match="set image_size"):
        load_images(ImageConfig(str(tmp_path)))
