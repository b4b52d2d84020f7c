"""Picture and mask files: what must survive does, white is repainted, nothing hostile gets further than an error."""

import io
import os
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import BmpImagePlugin, Image, ImageCms, ImageDraw, ImageFilter, PngImagePlugin, TiffImagePlugin

from asyncpatch import images
from asyncpatch.images import ImageError, Picture, feather, grow, picture_from, read_hole, read_picture, write
from asyncpatch.images import holes as growing

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
GREY_PROFILE = SRGB[:16] + b"GRAY" + SRGB[20:]


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(levels, *extra, size=None):
    """A PNG of 16 bits made by hand; ``size`` lets the header lie."""
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[levels.shape[2]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)
    width, height = size or (levels.shape[1], levels.shape[0])
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(levels, order, compression=1):
    """A TIFF of 16-bit RGB made by hand: one strip, plain (1) or deflated (8)."""
    height, width, channels = levels.shape
    data = levels.astype(f"{order}u2").tobytes()
    data = zlib.compress(data) if compression == 8 else data
    data += b"\0" * (len(data) % 2)
    entries = [(256, 3, width), (257, 3, height), (258, 3, None), (259, 3, compression), (262, 3, 2), (273, 4, 8)]
    entries += [(277, 3, channels), (278, 3, height), (279, 4, len(data))] + ([(338, 3, 2)] if channels == 4 else [])
    start = 8 + len(data)
    body = struct.pack(f"{order}H", len(entries))
    for tag, kind, value in entries:
        if value is None:
            body += struct.pack(f"{order}HHII", tag, kind, channels, start + 2 + 12 * len(entries) + 4)
        else:
            body += struct.pack(
                f"{order}HHIHH" if kind == 3 else f"{order}HHII", tag, kind, 1, value, *[0] * (kind == 3)
            )
    body += struct.pack(f"{order}I", 0) + struct.pack(f"{order}{channels}H", *[16] * channels)
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start) + data + body


def noise(*shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def exif(orientation=1):
    tags = Image.Exif()
    tags[0x010F] = "Maker of cameras"
    tags[0x0112] = orientation
    tags.get_ifd(0x8769)[0x829A] = (1, 125)  # exposure time
    tags.get_ifd(0x8825)[1] = "N"
    return tags


def stored(path):
    """Levels in a file as Pillow alone reads them."""
    with Image.open(path) as image:
        return np.asarray(image)


def some_hole(height, width):
    hole = torch.zeros(1, height, width)
    hole[:, 2:5, 3:7] = 1.0
    hole[:, 5, 3:7] = 0.25  # little to repaint is still to repaint
    return hole


MODES = {
    "1": Image.fromarray(noise(9, 11)).convert("1"),
    "L": Image.fromarray(noise(9, 11)),
    "LA": Image.fromarray(noise(9, 11, 2)),
    "P": Image.fromarray(noise(9, 11, 3)).quantize(17),
    "RGB": Image.fromarray(noise(9, 11, 3)),
    "RGBA": Image.fromarray(noise(9, 11, 4)),
    "I;16": Image.fromarray(noise(9, 11, dtype=np.uint16)),
}


@pytest.mark.parametrize("mode", MODES)
def test_outside_the_hole_every_level_survives_a_png(mode, tmp_path):
    image = MODES[mode]
    assert image.mode == mode
    image.save(tmp_path / "in.png")
    picture = read_picture(tmp_path / "in.png")
    assert picture.notes == ()
    assert picture.size == (9, 11)
    hole = some_hole(9, 11)
    x = torch.linspace(-1.2, 1.2, 3 * 99).reshape(3, 9, 11)
    assert write(picture.completed(x, hole), tmp_path / "out.png") == ()
    found = stored(tmp_path / "out.png")
    before = np.asarray(image.convert({"1": "L", "P": "RGB"}.get(mode, mode)))
    assert found.dtype == before.dtype
    assert found.shape == before.shape
    kept = hole[0].numpy() == 0
    assert kept.sum() == 99 - 16
    assert (found[kept] == before[kept]).all()
    full = 65535 if mode == "I;16" else 255
    new = ((x.double().clamp(-1, 1) + 1) / 2).permute(1, 2, 0).numpy()[~kept]
    if mode in ("1", "L", "LA", "I;16"):  # the values go beyond [-1, 1] here only where all three do
        new = (((x.double() + 1) / 2).permute(1, 2, 0).numpy()[~kept] @ [0.299, 0.587, 0.114]).clip(0, 1)[:, None]
    values = found[~kept].reshape(16, -1).astype(float)
    assert np.abs(values[:, : new.shape[1]] - new * full).max() <= 0.5 + 1e-4 * full / 255
    if mode in ("LA", "RGBA"):
        assert (values[:, -1] == 255).all()  # what is repainted is opaque
        assert (before[..., -1][~kept] < 255).any()


@pytest.mark.parametrize("suffix", [".webp", ".tif", ".TIFF", ".png"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA"])
def test_other_lossless_formats_are_lossless(mode, suffix, tmp_path):
    picture = picture_from(MODES[mode])
    write(picture, tmp_path / f"out{suffix}")
    again = read_picture(tmp_path / f"out{suffix}")
    assert (again.levels == picture.levels).all()
    assert (again.alpha is None) == (picture.alpha is None)
    if picture.alpha is not None:
        assert (again.alpha == picture.alpha).all()


def test_grey_of_16_bits_in_a_tiff(tmp_path):
    MODES["I;16"].save(tmp_path / "in.tif")
    picture = read_picture(tmp_path / "in.tif")
    assert picture.bits == 16
    assert write(picture, tmp_path / "out.tif") == ()
    assert (stored(tmp_path / "out.tif") == np.asarray(MODES["I;16"])).all()
    (said,) = write(picture, tmp_path / "out.webp")
    assert "rounded to 8" in said
    assert (stored(tmp_path / "out.webp")[..., 1] == np.round(np.asarray(MODES["I;16"]) / 257)).all()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bits_of_any_png(channels, tmp_path):
    """Pillow alone gives 8 bits of colours: both bytes come, and go."""
    levels = noise(9, 11, channels, dtype=np.uint16)
    (tmp_path / "in.png").write_bytes(png(levels))
    picture = read_picture(tmp_path / "in.png")
    assert picture.bits == 16
    assert picture.notes == ()
    colours = channels - 1 + channels % 2
    assert (picture.levels == levels[..., :colours]).all()
    assert (picture.alpha is None) == (channels % 2 == 1)
    hole = some_hole(9, 11)
    assert write(picture.completed(torch.ones(3, 9, 11), hole), tmp_path / "out.png") == ()
    again = read_picture(tmp_path / "out.png")
    joined = again.levels if again.alpha is None else np.dstack([again.levels, again.alpha])
    kept = hole[0].numpy() == 0
    assert (joined[kept] == levels[kept]).all()
    assert (joined[~kept] == 65535).all()
    assert (picture_from(picture.image()).bits == 16) == (channels == 1)


@pytest.mark.parametrize("compression", [1, 8])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("channels", [3, 4])
def test_16_bits_of_a_tiff(channels, order, compression, tmp_path):
    levels = noise(5, 7, channels, dtype=np.uint16)
    (tmp_path / "in.tif").write_bytes(tiff(levels, order, compression))
    picture = read_picture(tmp_path / "in.tif")
    assert (picture.levels == levels[..., :3]).all()
    assert channels == 3 or (picture.alpha == levels[..., 3]).all()
    (said,) = write(picture, tmp_path / "out.tif")
    assert "rounded to 8" in said
    assert (read_picture(tmp_path / "out.tif").levels == np.round(levels[..., :3] / 257)).all()


def test_16_bits_that_cannot_be_had_are_said(tmp_path):
    (tmp_path / "in.ppm").write_bytes(b"P6 1 1 65535\n" + struct.pack(">3H", 1000, 2000, 3000))
    picture = read_picture(tmp_path / "in.ppm")
    assert picture.bits == 8
    assert "read at 8" in picture.notes[0]


def test_one_transparent_colour_becomes_alpha(tmp_path):
    levels = noise(4, 5, 3, dtype=np.uint16)
    levels[1, 2] = 300, 301, 302
    levels[1, 3] = 300, 301, 303  # the same upper bytes: not transparent
    (tmp_path / "in.png").write_bytes(png(levels, chunk(b"tRNS", struct.pack(">3H", 300, 301, 302))))
    alpha = read_picture(tmp_path / "in.png").alpha
    assert alpha[1, 2] == 0
    assert (alpha == 65535).sum() == 19
    Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3)).save(tmp_path / "l.png", transparency=4)
    picture = read_picture(tmp_path / "l.png")
    assert (picture.alpha == [[255, 255, 255], [255, 0, 255]]).all()
    assert (picture.levels[..., 0] == [[0, 1, 2], [3, 4, 5]]).all()


def test_a_palette_with_transparency(tmp_path):
    image = Image.new("P", (3, 1))
    image.putdata([0, 1, 2])
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.save(tmp_path / "p.png", transparency=1)
    picture = read_picture(tmp_path / "p.png")
    assert picture.levels.tolist() == [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]
    assert picture.alpha.tolist() == [[255, 0, 255]]


def test_x_is_the_picture_between_minus_one_and_one():
    picture = picture_from(np.array([[[0, 51, 255]], [[255, 0, 102]]], np.uint8))
    assert picture.x.dtype == torch.float32
    assert picture.x.shape == (3, 2, 1)
    assert picture.x[:, 0, 0].tolist() == pytest.approx([-1.0, -0.6, 1.0])
    assert picture.x[:, 1, 0].tolist() == pytest.approx([1.0, -1.0, -0.2])
    clear = picture_from(np.array([[[0, 255, 0, 0], [0, 255, 0, 255], [0, 255, 0, 51]]], np.uint8))
    assert clear.x[:, 0].T.tolist() == pytest.approx(np.array([[1, 1, 1], [-1, 1, -1], [0.6, 1, 0.6]]))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_all_levels_survive_their_way_through_x(dtype):
    picture = picture_from(np.arange(np.iinfo(dtype).max + 1).astype(dtype).reshape(-1, 256))
    assert picture.x[:, 0, 0].tolist() == [-1, -1, -1]
    assert picture.x[:, -1, -1].tolist() == [1, 1, 1]
    blank = picture_from(np.zeros_like(picture.levels))
    assert (blank.completed(picture.x, torch.ones(1, *picture.size)).levels == picture.levels).all()


def test_a_window_is_a_part_of_x_and_can_be_painted_alone():
    picture = picture_from(noise(9, 11, 4))
    assert torch.equal(picture.window(2, 3, 4, 5), picture.x[:, 2:6, 3:8])
    hole = (torch.rand(1, 4, 5, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    for at in ((2, 3), (0, 0), (5, 6)):
        found = picture.completed(-torch.ones(1, 3, 4, 5), hole, at=at)
        inside = np.zeros((9, 11), bool)
        inside[at[0] : at[0] + 4, at[1] : at[1] + 5] = hole[0] > 0
        assert (found.levels[inside] == 0).all()
        assert (found.alpha[inside] == 255).all()
        assert (found.levels[~inside] == picture.levels[~inside]).all()
        assert (found.alpha[~inside] == picture.alpha[~inside]).all()
    for at in ((6, 6), (5, 7), (-1, 0)):
        with pytest.raises(ImageError, match=r"lie within|at least 0"):
            picture.completed(torch.ones(3, 4, 5), hole, at=at)
    with pytest.raises(ImageError, match=r"at=\(top, left\)"):
        picture.completed(torch.ones(3, 4, 5), hole)


def test_a_picture_never_changes():
    array = noise(4, 4, 3)
    before = array.copy()
    picture = picture_from(array)
    picture.completed(torch.ones(3, 4, 4), torch.ones(1, 4, 4))
    array[:] = 0
    assert (picture.levels == before).all()
    with pytest.raises(ValueError, match="read-only"):
        picture.levels[0] = 0


def test_what_cannot_be_painted():
    picture = picture_from(noise(4, 5, 3))
    good, hole = torch.zeros(3, 4, 5), torch.ones(1, 4, 5)
    with pytest.raises(ImageError, match="finite"):
        picture.completed(good * float("nan"), hole)
    picture.completed(torch.where(hole > 2, 0.0, float("nan")).expand(3, -1, -1), hole * 0)  # none of it is used
    for x in (good[:2], good.int(), good[None].repeat(2, 1, 1, 1), good.numpy()):
        with pytest.raises(ImageError, match=r"x must be a floating-point tensor \[3, H, W\]"):
            picture.completed(x, hole)
    for other in (hole[:, 1:], hole * 255, hole.repeat(2, 1, 1), hole * float("nan")):
        with pytest.raises(ImageError, match="hole must"):
            picture.completed(good, other)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "tif", "deep.png", "webp", "pillow"])
def test_pictures_come_upright_and_say_so(orientation, kind, tmp_path):
    shown = noise(4, 6, 3)  # what a viewer shows; stored such that the tag brings it back, by Pillow's own table
    undo = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90"}
    undo |= {7: "TRANSVERSE", 8: "ROTATE_270"}
    image = Image.fromarray(shown)
    if orientation > 1:
        image = image.transpose(Image.Transpose[undo[orientation]])
    path = tmp_path / f"in.{kind}"
    if kind == "deep.png":
        deep = np.asarray(image).astype(np.uint16) * 257
        path.write_bytes(png(deep, chunk(b"eXIf", exif(orientation).tobytes().removeprefix(b"Exif\0\0"))))
        picture = read_picture(path)
        assert (picture.levels == shown.astype(np.uint16) * 257).all()
    elif kind == "pillow":
        image.save(tmp_path / "in.png", exif=exif(orientation))
        with Image.open(tmp_path / "in.png") as source:
            picture = picture_from(source)
            assert source.getexif()[0x0112] == orientation  # the caller's own is left alone
        assert (picture.levels == shown).all()
    else:
        image.save(path, exif=exif(orientation).tobytes(), lossless=True)  # Pillow's TIFF wants bytes
        picture = read_picture(path)
        assert (picture.levels == shown).all()
    for name in ("out.png", "out.jpg", "out.webp", "out.tiff"):
        write(picture, tmp_path / name)
        with Image.open(tmp_path / name) as again:
            again.load()
            assert again.size == (6, 4)
            tags = again.getexif()
            assert tags.get(0x0112, 1) == 1
            assert tags[0x010F] == "Maker of cameras"
            assert tags.get_ifd(0x8769)[0x829A] in (1 / 125, (1, 125))
            assert tags.get_ifd(0x8825)[1] == "N"


def test_tags_of_a_tiff_that_tell_of_its_storage_do_not_survive(tmp_path):
    options = {"compression": None, "description": "a photo", "dpi": (200, 200), "big_tiff": True}
    Image.fromarray(noise(8, 8, 3)).save(tmp_path / "in.tif", **options)
    picture = read_picture(tmp_path / "in.tif")
    assert picture.dpi == (200, 200)
    write(picture, tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as image:
        assert dict(image.getexif()) == {270: "a photo"}
    write(picture, tmp_path / "out.tif")
    again = read_picture(tmp_path / "out.tif")
    assert (again.levels == picture.levels).all()
    assert (again.exif, again.dpi) == (picture.exif, picture.dpi)


def test_little_endian_exif_keeps_its_order_and_its_directories(tmp_path):
    tags = exif(3)
    tags.endian = "<"
    tags.get_ifd(0x8769)[0xA005] = {1: "R98"}
    tags.get_ifd(0x8769)[0x927C] = b"a maker's note"
    Image.new("RGB", (8, 4)).save(tmp_path / "in.jpg", exif=tags.tobytes())
    found = Image.Exif()
    found.load(read_picture(tmp_path / "in.jpg").exif)
    assert found.endian == "<"
    assert 0x0112 not in found
    assert found.get_ifd(0x8769)[0x927C] == b"a maker's note"
    assert found.get_ifd(0xA005) == {1: "R98"}


def test_a_thumbnail_does_not_survive(tmp_path):
    """It would show what was painted over."""
    small = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(small, "JPEG")
    tags = exif()
    body = tags.tobytes()
    first = 14 + 2 + 12 * struct.unpack(">H", body[14:16])[0]  # where the first directory names the next
    entries = struct.pack(">H", 2) + struct.pack(">HHII", 513, 4, 1, len(body) - 6 + 30)
    entries += struct.pack(">HHII", 514, 4, 1, len(small.getvalue())) + struct.pack(">I", 0)
    body = body[:first] + struct.pack(">I", len(body) - 6) + body[first + 4 :] + entries + small.getvalue()
    Image.new("RGB", (8, 8)).save(tmp_path / "in.jpg", exif=body)
    assert small.getvalue() in (tmp_path / "in.jpg").read_bytes()
    picture = read_picture(tmp_path / "in.jpg")
    assert b"Maker" in picture.exif
    write(picture, tmp_path / "out.png")
    assert small.getvalue()[:100] not in (tmp_path / "out.png").read_bytes()


def test_what_photoshop_and_cameras_add_does_not_survive_either(tmp_path):
    """Layers, resources and XMP of a TIFF, and a maker's note with a preview, are pictures of what was painted over."""
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    hidden = {700: b"<x:xmpmeta>hidden", 34377: b"8BIM hidden", 37724: b"Adobe Photoshop hidden"}
    for tag, value in {**hidden, 33723: b"a caption"}.items():
        tags[tag], tags.tagtype[tag] = value, 7
    path = saved(Image.fromarray(noise(8, 8, 3)), tmp_path / "in.tif", tiffinfo=tags)
    assert path.read_bytes().count(b"hidden") == 3
    picture = read_picture(path)
    (said,) = picture.notes
    assert all(each in said for each in ("XMP", "Photoshop's resources", "Photoshop's layers"))
    assert b"a caption" in picture.exif
    for name in ("out.png", "out.jpg", "out.webp", "out.tif"):
        write(picture, tmp_path / name)
        assert b"hidden" not in (tmp_path / name).read_bytes()
        assert b"a caption" in (tmp_path / name).read_bytes()
    assert read_hole(path, (8, 8)).notes == ("the mask is coloured: its brightness says how much is repainted",)
    noted = exif()
    noted[700] = b"<x:xmpmeta>hidden"
    noted.get_ifd(0x8769)[0x927C] = b"MAKER\0" + jpeg(8) + b"hidden"
    picture = read_picture(saved(Image.new("RGB", (8, 8)), tmp_path / "in.jpg", exif=noted))
    assert "XMP, the maker's note" in picture.notes[0]
    assert b"hidden" not in picture.exif
    assert b"Maker of cameras" in picture.exif


@pytest.mark.parametrize("name", ["in.png", "in.jpg", "in.webp"])
def test_no_segment_of_a_file_is_copied_as_it_is(name, tmp_path):
    image, hidden = Image.fromarray(noise(8, 8, 3)), b"<x:xmpmeta>hidden</x:xmpmeta>"
    image.save(tmp_path / name, **({"xmp": hidden} if name != "in.png" else {}))
    data = (tmp_path / name).read_bytes()
    if name == "in.png":
        xmp = b"XML:com.adobe.xmp" + bytes(5) + hidden
        data = data[:33] + chunk(b"iTXt", xmp) + chunk(b"prVt", b"hidden") + data[33:]
    elif name == "in.jpg":
        for marker, head in ((0xE0, b"JFXX\0\x10"), (0xE2, b"MPF\0"), (0xED, b"Photoshop 3.0\0"), (0xFE, b"")):
            data = data[:2] + b"\xff" + bytes([marker]) + struct.pack(">H", 8 + len(head)) + head + b"hidden" + data[2:]
    (tmp_path / name).write_bytes(data)
    picture = read_picture(tmp_path / name)
    for suffix in (".png", ".jpg", ".webp", ".tif"):
        write(picture, tmp_path / f"out{suffix}")
        assert b"hidden" not in (tmp_path / f"out{suffix}").read_bytes()


COLOURS = (
    (b"gAMA", struct.pack(">I", 100_000)),
    (b"cHRM", struct.pack(">8I", 31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)),
    (b"sRGB", b"\1"),
    (b"cICP", bytes([9, 16, 0, 1])),
)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_what_a_png_says_of_its_colours_survives(dtype, tmp_path):
    write(Picture(levels=noise(8, 8, 3, dtype=dtype)), tmp_path / "plain.png")
    plain = (tmp_path / "plain.png").read_bytes()
    (tmp_path / "in.png").write_bytes(plain[:33] + b"".join(chunk(*each) for each in COLOURS) + plain[33:])
    picture = read_picture(tmp_path / "in.png").completed(torch.zeros(3, 8, 8), some_hole(8, 8))
    assert picture.chunks == COLOURS
    assert write(picture, tmp_path / "out.png") == ()
    assert read_picture(tmp_path / "out.png").chunks == COLOURS
    with Image.open(tmp_path / "out.png") as image:
        assert (image.info["gamma"], image.info["srgb"]) == (1.0, 1)
        assert picture_from(image).chunks == COLOURS[:3]  # Pillow does not know cICP
    picture = Picture(levels=picture.levels, chunks=COLOURS, profile=SRGB)
    write(picture, tmp_path / "profile.png")  # which never has sRGB beside it
    assert read_picture(tmp_path / "profile.png").chunks == (*COLOURS[:2], COLOURS[3])
    assert read_picture(tmp_path / "profile.png").profile == SRGB


@pytest.mark.parametrize("name", ["out.webp", "out.tif", "out.jpg"])
def test_what_a_png_says_of_its_colours_is_said_where_it_cannot_be_kept(name, tmp_path):
    def said(*chunks, profile=None):
        picture = Picture(levels=noise(8, 8, 3), chunks=chunks, profile=profile)
        return [each for each in write(picture, tmp_path / name, force=True) if "says of its colours" in each]

    gamma, primaries, srgb, _ = COLOURS
    assert "(gAMA, cHRM)" in said(gamma, primaries)[0]
    assert "(cICP)" in said(*COLOURS)[0]
    assert "(cICP)" in said(*COLOURS, profile=SRGB)[0]
    usual = struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
    assert said((b"gAMA", struct.pack(">I", 45455)), (b"cHRM", usual), (b"cICP", bytes([1, 13, 0, 1]))) == []
    assert said(gamma, primaries, srgb) == said(gamma, primaries, profile=SRGB) == said() == []


def test_words_in_a_png_are_not_what_it_says_of_its_colours(tmp_path):
    info = PngImagePlugin.PngInfo()
    for key in ("gamma", "chromaticity", "srgb"):
        info.add_text(key, "1")
    assert read_picture(saved(Image.new("L", (4, 4)), tmp_path / "in.png", pnginfo=info)).chunks == ()


@pytest.mark.parametrize(
    ("tags", "dpi"),
    [
        ({}, None),
        ({282: 300.0}, None),
        ({282: 300.0, 283: 150.0}, (300, 150)),
        ({282: 300.0, 283: 150.0, 296: 1}, None),
        ({282: 100.0, 283: 50.0, 296: 3}, (254, 127)),
    ],
)
def test_a_tiff_has_the_resolution_that_it_says_or_none(tags, dpi, tmp_path):
    picture = read_picture(saved(Image.new("RGB", (8, 8)), tmp_path / "in.tif", tiffinfo=tags))
    assert picture.dpi == (dpi and pytest.approx(dpi))
    write(picture, tmp_path / "out.png")
    assert (b"pHYs" in (tmp_path / "out.png").read_bytes()) == (dpi is not None)


@pytest.mark.parametrize("compression", [None, "tiff_adobe_deflate"])
@pytest.mark.parametrize(("dtype", "full"), [(np.uint8, 255), (np.uint16, 65535), (np.float32, 1.0)])
def test_a_tiff_in_which_white_is_zero(dtype, full, compression, tmp_path):
    """The photometric tag alone differs: 16 bits and floating point are read like 8."""
    shown = np.array([[0, 0.2, 0.6, 1]])
    for tag, levels in ((0, 1 - shown), (1, shown)):
        image = Image.fromarray((levels * full).round(0 if full > 1 else 9).astype(dtype))
        if dtype == np.uint8:  # which Pillow turns round when it writes, too
            image = Image.fromarray((shown * full).round().astype(dtype))
        path = saved(image, tmp_path / f"{tag}.tif", tiffinfo={262: tag}, compression=compression)
        with Image.open(path) as again:
            assert again.tag_v2[262] == tag
        picture = read_picture(path)
        assert picture.levels[0, :, 0] / picture.full == pytest.approx(shown[0], abs=1e-4)
        assert read_hole(path).hole[0, 0].tolist() == pytest.approx(shown[0], abs=1e-4)


def test_resolution_turns_with_the_picture(tmp_path):
    Image.new("RGB", (6, 4)).save(tmp_path / "in.png", dpi=(300, 150), exif=exif(6))
    assert read_picture(tmp_path / "in.png").dpi == pytest.approx((150, 300), abs=0.1)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tif"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_profile_and_resolution_survive(suffix, dtype, tmp_path):
    picture = Picture(levels=noise(8, 8, 3, dtype=dtype), profile=SRGB, dpi=(300.0, 300.0))
    write(picture, tmp_path / f"out{suffix}")
    with Image.open(tmp_path / f"out{suffix}") as image:
        assert image.info["icc_profile"] == SRGB
        assert suffix == ".webp" or image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    again = read_picture(tmp_path / f"out{suffix}").completed(torch.zeros(3, 8, 8), torch.ones(1, 8, 8))
    assert again.profile == SRGB
    assert again.image().info["icc_profile"] == SRGB


def test_a_profile_never_goes_with_colours_of_another_kind(tmp_path):
    picture = Picture(levels=noise(8, 8, 1), profile=GREY_PROFILE)
    assert write(picture, tmp_path / "out.png") == ()
    assert read_picture(tmp_path / "out.png").profile == GREY_PROFILE
    (said,) = write(picture, tmp_path / "out.webp")  # has no grey
    assert "profile" in said
    assert read_picture(tmp_path / "out.webp").profile is None


def test_cmyk_becomes_rgb(tmp_path):
    Image.fromarray(noise(8, 8, 3)).convert("CMYK").save(
        tmp_path / "in.tif", icc_profile=b"\0" * 16 + b"CMYK" + b"\0" * 108
    )
    picture = read_picture(tmp_path / "in.tif")
    assert (picture.levels == noise(8, 8, 3)).all()
    assert picture.profile is None
    assert picture.notes == ("CMYK was converted to RGB",)


def test_jpeg_is_close_opaque_and_says_so(tmp_path):
    ramp = np.stack(np.broadcast_arrays(np.arange(64)[:, None] * 4, np.arange(64)[None] * 4, 128), -1).astype(np.uint8)
    alpha = np.full((64, 64), 255, np.uint8)
    alpha[:16, :16] = 0
    alpha[32:48, 32:48] = 51
    said = write(Picture(levels=ramp, alpha=alpha), tmp_path / "out.JPG")
    assert any("lossy" in each for each in said)
    assert any("laid over white" in each for each in said)
    found = stored(tmp_path / "out.JPG").astype(int)
    assert found.shape == (64, 64, 3)
    assert (found[:16, :16] >= 250).all()
    assert np.abs(found[34:46, 34:46] - (ramp[34:46, 34:46] * 0.2 + 204)).max() < 6
    assert np.abs(found[48:] - ramp[48:].astype(int)).max() < 12
    with Image.open(tmp_path / "out.JPG") as image:
        assert image.format == "JPEG"
        assert {part[1:3] for part in image.layer} == {(1, 1)}  # full colour resolution
    (said,) = write(picture_from(ramp), tmp_path / "opaque.jpeg")
    assert "lossy" in said


def test_extending_keeps_the_old_pixels_and_holes_the_new():
    picture = picture_from(noise(3, 4, 4))
    larger, hole = picture.extended(left=1, top=2, right=3, bottom=4)
    assert larger.size == (9, 8)
    assert hole.shape == (1, 9, 8)
    assert (larger.levels[2:5, 1:5] == picture.levels).all()
    assert (larger.alpha[2:5, 1:5] == picture.alpha).all()
    assert hole.sum() == 9 * 8 - 12
    assert (hole[0, 2:5, 1:5] == 0).all()
    assert (larger.levels[hole[0] > 0] == 128).all()
    assert (larger.alpha[hole[0] > 0] == 255).all()
    with pytest.raises(ImageError, match="nothing to extend"):
        picture.extended()
    with pytest.raises(ImageError, match="left must be"):
        picture.extended(left=-1)
    with pytest.raises(ImageError, match="pixels"):
        picture.extended(right=10**12)


def test_pictures_from_objects(tmp_path):
    array = noise(4, 5, 3)
    Image.fromarray(array).save(tmp_path / "a.png")
    x = torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1
    for source in (
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(array),
        array,
        x,
        x[None],
        array / 255.0,
    ):
        assert (picture_from(source).levels == array).all()
    picture = picture_from(array)
    assert picture_from(picture) is picture
    assert picture_from(array[..., 0]).grey
    assert (picture_from(array[..., 0] > 99).levels[..., 0] == np.where(array[..., 0] > 99, 255, 0)).all()
    assert (picture_from(noise(4, 5, 4)).alpha == noise(4, 5, 4)[..., 3]).all()
    assert (
        picture_from(noise(4, 5, dtype=np.uint16).astype(">u2")).levels[..., 0] == noise(4, 5, dtype=np.uint16)
    ).all()
    assert (picture_from(x[:1]).levels == array[..., :1]).all()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (noise(3, 4, 5), r"transpose\(1, 2, 0\)"),
        (noise(4, 5, 3).astype(float), "divide by 255"),
        (noise(4, 5, 3).astype(np.int64), "int64"),
        (np.full((4, 5), np.nan), r"\[0, 1\]"),
        (np.zeros((0, 5, 3), np.uint8), r"\[H, W, 3\]"),
        (torch.full((3, 4, 5), 2.0), r"\[-1, 1\]"),
        (torch.full((3, 4, 5), float("nan")), r"\[-1, 1\]"),
        (torch.zeros(3, 4, 5, dtype=torch.uint8), "floating-point"),
        (torch.zeros(2, 3, 4, 5), r"\[1, 3, H, W\]"),
        (None, "NoneType"),
        (b"bytes", "bytes"),
    ],
)
def test_objects_that_are_no_pictures(source, said):
    with pytest.raises(ImageError, match=said):
        picture_from(source)


# ---- Masks


def saved(image, path, **options):
    image.save(path, **options)
    return path


def test_white_is_repainted_and_grey_in_between(tmp_path):
    levels = np.array([[0, 255], [51, 254]], np.uint8)
    want = [[0.0, 1.0], [0.2, 254 / 255]]
    grey = Image.fromarray(levels)
    for source in (
        saved(grey, tmp_path / "l.png"),
        saved(grey.convert("RGB"), tmp_path / "rgb.png"),
        saved(grey.convert("RGBA"), tmp_path / "rgba.png"),
        saved(grey.convert("P"), tmp_path / "p.png"),
        saved(grey.convert("RGB"), tmp_path / "lossless.webp", lossless=True),
        saved(Image.fromarray(levels.astype(np.uint16) * 257), tmp_path / "deep.png"),
        grey,
        levels,
        levels / 255.0,
        torch.from_numpy(levels / 255.0),
        torch.from_numpy(levels / 255.0)[None, None].float(),
    ):
        hole, notes = read_hole(source, (2, 2))
        assert hole.dtype == torch.float32
        assert hole.shape == (1, 2, 2)
        assert hole[0].tolist() == pytest.approx(np.array(want), abs=1e-6)
        assert (hole[0, 0, 0], hole[0, 0, 1]) == (0, 1)  # exactly
        assert notes == ()
        assert read_hole(source, invert=True).hole[0].tolist() == pytest.approx(1 - np.array(want), abs=1e-6)
    bilevel = saved(Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1"), tmp_path / "1.png")
    for source in (bilevel, np.array([[False, True]]), torch.tensor([[False, True]])):
        assert read_hole(source).hole.tolist() == [[[0.0, 1.0]]]


def test_the_whole_way_from_files(tmp_path):
    """White in the file is where the new pixels go: three literal pixels."""
    Image.fromarray(np.array([[10, 20, 30]], np.uint8)).save(tmp_path / "photo.png")
    Image.fromarray(np.array([[0, 255, 0]], np.uint8)).save(tmp_path / "mask.png")
    picture = read_picture(tmp_path / "photo.png")
    hole = read_hole(tmp_path / "mask.png", picture.size).hole
    write(picture.completed(torch.ones(3, 1, 3), hole), tmp_path / "out.png")
    assert stored(tmp_path / "out.png").tolist() == [[10, 255, 30]]
    hole = read_hole(tmp_path / "mask.png", picture.size, invert=True).hole
    write(picture.completed(torch.ones(3, 1, 3), hole), tmp_path / "inverted.png")
    assert stored(tmp_path / "inverted.png").tolist() == [[255, 20, 255]]


def test_coloured_masks_count_by_brightness_and_say_so(tmp_path):
    hole, notes = read_hole(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]]], np.uint8))
    assert hole[0, 0].tolist() == pytest.approx([0.299, 0.587, 0.114, 1, 0], abs=1e-6)
    assert hole[0, 0, 3] == 1
    assert hole[0, 0, 4] == 0
    assert "coloured" in notes[0]


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    ("levels", "factor"),
    [
        (np.array([[0, 1]], np.uint8), 255),
        (np.array([[1, 1]], np.uint8), 255),
        (np.array([[0, 8]], np.uint8), 31.875),
        (np.array([[[0, 0, 0], [1, 1, 1]]], np.uint8), 255),
        (np.array([[[9, 9, 9, 0], [9, 9, 9, 1]]], np.uint8), 255),
        (np.array([[0, 1]], np.uint16), 65535),
        (np.array([[0, 255]], np.uint16), 257),
        (np.array([[0, 255]], np.int32), 257),
        (np.array([[0, 1 / 255]], np.float32), 255),
    ],
)
def test_levels_of_0_and_1_are_refused(levels, factor, invert, tmp_path):
    """As masks of segmentation come: next to nothing would be repainted, or stay."""
    sources = []
    if levels.dtype != np.int32:
        sources.append(levels)
    if levels.dtype == np.float32:
        sources.append(torch.from_numpy(levels))
    else:
        sources.append(saved(Image.fromarray(levels), tmp_path / "m.tif"))
    if levels.dtype in (np.uint8, np.uint16):
        sources.append(saved(Image.fromarray(levels), tmp_path / "m.png"))
    for source in sources:
        with pytest.raises(ImageError, match=f"its brightest level is .* multiply it by {factor}, so that it is white"):
            read_hole(source, (1, 2), invert=invert)


def test_levels_of_0_and_1_are_refused_before_a_lossy_file_is_taken_for_black(tmp_path):
    """Inverted it would repaint all."""
    path = saved(Image.fromarray(np.repeat(np.array([[0, 1]], np.uint8), 8, 1).repeat(8, 0)), tmp_path / "m.jpg")
    assert set(stored(path).flatten().tolist()) == {0, 1}
    with pytest.raises(ImageError, match="its brightest level is 1 of 255"):
        read_hole(path, invert=True)


def test_masks_that_repaint_little_say_so():
    parts = np.array([[0, 10, 38, 25]], np.uint8)  # three parts of a picture, by number
    assert read_hole(parts).notes == ("by the mask nothing is repainted by more than 15 %",)
    assert read_hole(255 - parts, invert=True).notes == read_hole(parts).notes
    assert read_hole(parts, invert=True).notes == ()
    assert read_hole(np.array([[0, 9]], np.uint8)).notes == ("by the mask nothing is repainted by more than 3.5 %",)
    assert read_hole(np.array([[0, 64]], np.uint8)).notes == ()
    assert read_hole(np.zeros((2, 2), np.uint8), invert=True).hole.min() == 1  # black is meant


def test_what_is_said_of_an_inverted_mask_is_what_happens():
    stroke = np.array([[[0, 0, 0, 0], [255, 0, 80, 255]]], np.uint8)
    hole, notes = read_hole(stroke, invert=True)
    assert hole.tolist() == [[[1, 0]]]
    assert notes == ("the mask is one colour on a transparent sheet: what is opaque stays, the rest is repainted",)
    several = np.array([[[255, 0, 0, 255], [0, 0, 0, 255], [255, 255, 255, 0]]], np.uint8)
    hole, notes = read_hole(several, invert=True)
    assert hole[0, 0].tolist() == pytest.approx([0.701, 1, 1])
    assert notes[0] == "the mask is coloured: its brightness says how much stays"
    assert notes[1] == "the mask has transparent parts: they are repainted"
    for invert, what in ((False, "change"), (True, "stay")):
        with pytest.raises(ImageError, match=f"wholly transparent. Paint white what shall {what}"):
            read_hole(np.zeros((2, 2, 4), np.uint8), invert=invert)


def test_strokes_on_a_transparent_sheet():
    sheet = np.zeros((1, 4, 4), np.uint8)  # transparent black, as a canvas starts
    for colour in ((0, 0, 0), (255, 255, 255), (255, 0, 80)):
        sheet[0, 1] = *colour, 255
        sheet[0, 2] = *colour, 102
        sheet[0, 3] = 1, 1, 1, 2  # hardly there, its colour rounded
        hole, notes = read_hole(sheet)
        assert hole[0, 0].tolist() == pytest.approx([0, 1, 0.4, 2 / 255])
        assert "transparent" in notes[0]
    several = np.array([[[255, 255, 255, 255], [0, 0, 0, 255], [255, 255, 255, 0], [255, 255, 255, 128]]], np.uint8)
    hole, notes = read_hole(several)
    assert hole[0, 0].tolist() == pytest.approx([1, 0, 0, 128 / 255])
    assert "transparent" in notes[0]
    with pytest.raises(ImageError, match="transparent"):
        read_hole(np.zeros((2, 2, 4), np.uint8))


def test_beside_the_strokes_of_a_jpeg_nothing_is_repainted(tmp_path):
    drawn = Image.new("L", (96, 96))
    ImageDraw.Draw(drawn).line([(4, 80), (30, 12), (50, 84), (76, 20), (92, 70)], fill=255, width=7)
    stroke = np.asarray(drawn) > 0
    hole, _ = read_hole(saved(drawn, tmp_path / "m.jpg", quality=75))
    near = np.asarray(drawn.filter(ImageFilter.MaxFilter(3))) > 0  # its rim is soft
    assert (hole[0].numpy()[~near] == 0).all()
    assert (hole[0].numpy()[stroke] > 0.5).mean() > 0.95


@pytest.mark.parametrize(("name", "options"), [("m.jpg", {"quality": 60}), ("m.webp", {"quality": 60}), ("m.avif", {})])
def test_lossy_masks_snap_to_the_ends(name, options, tmp_path):
    levels = np.zeros((64, 64), np.uint8)
    levels[:32] = 4
    levels[:, 40:] = 250
    levels[48:, :16] = 128
    path = saved(Image.fromarray(levels).convert("RGB"), tmp_path / name, **options)
    hole, notes = read_hole(path)
    assert (hole[0, :24, :32] == 0).all()
    assert (hole[0, :, 48:] == 1).all()
    assert hole[0, 56, 8] == pytest.approx(128 / 255, abs=0.03)
    assert "lossy" in notes[0]
    assert (read_hole(path, invert=True).hole[0, :24, :32] == 1).all()
    exact = read_hole(saved(Image.fromarray(levels), tmp_path / "m.png"))
    assert exact.notes == ()
    assert exact.hole[0, 0, 0] == pytest.approx(4 / 255)


def test_where_snapping_ends(tmp_path):
    for level, want in ((0, 0), (39, 0), (40, 0), (42, 42 / 255), (213, 213 / 255), (215, 1), (255, 1)):
        levels = np.full((16, 32), 128, np.uint8)
        levels[:, 16:] = level
        path = saved(Image.fromarray(levels), tmp_path / "m.jpg", quality=100)
        assert read_hole(path).hole[0, 8, 31] == pytest.approx(want), level


def test_a_mask_of_another_size_is_never_squashed(tmp_path):
    path = saved(Image.new("L", (400, 300), 255), tmp_path / "m.png")
    assert read_hole(path, (300, 400)).hole.shape == (1, 300, 400)
    with pytest.raises(ImageError, match=r"m\.png.*400 x 300.*800 x 600.*resize\(\(800, 600\)"):
        read_hole(path, (600, 800))
    with pytest.raises(ImageError, match=r"resize\(\(401, 300\)"):
        read_hole(path, (300, 401))
    with pytest.raises(ImageError, match=r"400 x 300.*300 x 400.*on its side.*rotate"):
        read_hole(path, (400, 300))
    with pytest.raises(ImageError, match=r"400 x 300.*500 x 300.*shapes differ"):
        read_hole(path, (300, 500))


def test_the_mask_of_a_rotated_photo(tmp_path):
    """The photo is stored lying; a mask drawn on what is seen fits, one made of the stored pixels does not."""
    photo = read_picture(saved(Image.new("RGB", (8, 4)), tmp_path / "photo.jpg", exif=exif(6)))
    assert photo.size == (8, 4)
    assert read_hole(Image.new("L", (4, 8), 255), photo.size).hole.shape == (1, 8, 4)
    with pytest.raises(ImageError, match="EXIF"):
        read_hole(Image.new("L", (8, 4), 255), photo.size)
    lying = saved(Image.new("L", (8, 4), 255), tmp_path / "lying.png", exif=exif(6))  # but has the tag itself
    assert read_hole(lying, photo.size).hole.shape == (1, 8, 4)


def test_nothing_to_repaint(tmp_path):
    with pytest.raises(ImageError, match=r"m\.png: nothing to repaint.*--invert"):
        read_hole(saved(Image.new("L", (4, 4), 0), tmp_path / "m.png"))
    with pytest.raises(ImageError, match=r"nothing to repaint.*leave out --invert"):
        read_hole(Image.new("L", (4, 4), 255), invert=True)
    with pytest.raises(ImageError, match="nothing to repaint"):
        read_hole(saved(Image.new("L", (16, 16), 9), tmp_path / "m.jpg"))  # snapped


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (np.array([[0.0, 255.0]]), "divide by 255"),
        (torch.tensor([[0.0, 255.0]]), "divide by 255"),
        (torch.tensor([[0, 1]]), "floating point"),
        (torch.ones(2, 1, 4, 4), r"\[1, H, W\]"),
        (None, "NoneType"),
    ],
)
def test_objects_that_are_no_masks(source, said):
    with pytest.raises(ImageError, match=said):
        read_hole(source)


# ---- Growing and fading, against the definition


def random_holes():
    generator = torch.Generator().manual_seed(1)
    for height, width, kept in (
        (9, 13, 0.9),
        (12, 7, 0.5),
        (1, 8, 0.5),
        (8, 1, 0.5),
        (11, 11, 0.05),
        (6, 6, 0.0),
        (5, 5, 1.1),
    ):
        value = torch.rand(1, height, width, generator=generator)
        yield torch.where(torch.rand(1, height, width, generator=generator) < kept, 0.0, value)
        yield torch.where(torch.rand(1, height, width, generator=generator) < kept, 0.0, 1.0)


def around(hole, y, x, radius):
    _, height, width = hole.shape
    return [
        float(hole[0, v, u]) for v in range(height) for u in range(width) if (v - y) ** 2 + (u - x) ** 2 <= radius**2
    ]


@pytest.mark.parametrize("pixels", [0, 1, 2, 3, 5, 40])
def test_grow_and_shrink_are_the_extremes_of_a_disc(pixels):
    for hole in random_holes():
        grown, shrunk = grow(hole, pixels), grow(hole, -pixels)
        for y in range(hole.shape[1]):
            for x in range(hole.shape[2]):
                assert grown[0, y, x] == max(around(hole, y, x, pixels))
                assert shrunk[0, y, x] == min(around(hole, y, x, pixels))


@pytest.mark.parametrize("pixels", [0, 1, 2, 3, 7, 40])
def test_feather_rises_with_the_distance_from_what_is_kept(pixels):
    for hole in random_holes():
        before, faded = hole.clone(), feather(hole, pixels)
        assert torch.equal(hole, before)
        kept = (hole[0] == 0).nonzero().double()
        assert (faded[hole == 0] == 0).all()
        assert (faded <= hole).all()
        for y in range(hole.shape[1]):
            for x in range(hole.shape[2]):
                far = float((kept - torch.tensor([y, x])).square().sum(1).sqrt().min()) if len(kept) else float("inf")
                want = hole[0, y, x] if pixels == 0 else min(float(hole[0, y, x]), far / (pixels + 1))
                assert faded[0, y, x] == pytest.approx(float(want), abs=1e-6)


def test_feather_by_hand():
    hole = torch.tensor([[[0.0, 1, 1, 1, 1, 1, 1]]])
    assert feather(hole, 3)[0, 0].tolist() == [0, 0.25, 0.5, 0.75, 1, 1, 1]  # the rim on the right is no edge
    assert feather(feather(hole, 3), 3)[0, 0].tolist() == [0, 0.25, 0.5, 0.75, 1, 1, 1]


def test_values_move_but_do_not_change():
    hole = torch.full((1, 5, 5), 0.1)  # 1 - (1 - 0.1) is not 0.1
    hole[0, 2, 2] = 0.7
    assert set(grow(hole, 1).flatten().tolist()) == set(hole.flatten().tolist())
    assert set(grow(hole, -1).flatten().tolist()) == {float(hole[0, 0, 0])}


def test_holes_of_any_batch():
    holes = (torch.rand(3, 1, 20, 30, generator=torch.Generator().manual_seed(0)) > 0.9).float()
    for change, pixels in ((grow, 2), (grow, -1), (feather, 3)):
        assert torch.equal(change(holes, pixels), torch.stack([change(each, pixels) for each in holes]))
        assert torch.equal(change(holes[0, 0], pixels), change(holes[0], pixels)[0])
        for bad in (holes * 255, holes.int(), holes.numpy()):
            with pytest.raises(ImageError, match="hole must"):
                change(bad, pixels)
        with pytest.raises(ImageError, match="pixels must"):
            change(holes, 1.5)
    with pytest.raises(ImageError, match="pixels must"):
        feather(holes, -1)


def test_only_the_surroundings_of_a_small_hole_are_looked_at(monkeypatch):
    seen = []
    inner = growing._largest_within
    monkeypatch.setattr(
        growing, "_largest_within", lambda values, radius: seen.append(values.shape) or inner(values, radius)
    )
    hole = torch.zeros(1, 500, 600)
    hole[:, 100:110, 200:220] = 1.0
    assert grow(hole, 5).count_nonzero() > 200
    assert seen == [(1, 20, 30)]


# ---- Hostile files


def jpeg(size=64):
    file = io.BytesIO()
    Image.effect_noise((size, size), 50).save(file, "JPEG")
    return file.getvalue()


def encoded(kind):
    file = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(file, kind)
    return file.getvalue()


HOSTILE = {
    "empty.png": b"",
    "svg.png": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
    "text.png": b"this is no picture\n",
    "pdf.png": b"%PDF-1.7\n",
    "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
    "half.jpg": jpeg()[:1500],
    "half.png": encoded("PNG")[:5000],
    "half.webp": encoded("WEBP")[:1000],
    "half.tif": encoded("TIFF")[:6000],
    "half.gif": encoded("GIF")[:1500],
    "half.bmp": encoded("BMP")[:6000],
    "signature.png": b"\x89PNG\r\n\x1a\n",
    "signature.gif": b"GIF89a",
    "signature.webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    "bomb.png": png(noise(1, 1, 3, dtype=np.uint16), size=(60_000, 60_000)),
    "absurd.png": png(noise(1, 1, 3, dtype=np.uint16), size=(2**31 - 1, 2**31 - 1)),
    "short.png": png(noise(1, 1, 3, dtype=np.uint16), size=(64, 64)),
    "nothing.png": png(noise(1, 1, 3, dtype=np.uint16), size=(0, 5)),
    "absurd.ppm": b"P6 999999999 999999999 255\n",
    "bomb.gif": b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\x01\0\0;",
    "bomb.webp": b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff" + b"\0" * 8,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_error_that_names_it(name, tmp_path):
    (tmp_path / name).write_bytes(HOSTILE[name])
    for reader in (read_picture, picture_from, read_hole):
        with pytest.raises(ImageError) as caught:
            reader(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    if name.startswith(("bomb", "absurd")) and not name.endswith("webp"):
        assert "pixels" in str(caught.value)


def test_damage_anywhere_is_an_error_or_a_picture(tmp_path):
    """Bytes changed at random: whatever the decoder does, nothing but an ImageError comes out, and no warning."""
    random = np.random.default_rng(0)
    tags = exif(6).tobytes()
    path = tmp_path / "damaged"
    failed = 0
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP"):
        file = io.BytesIO()
        Image.fromarray(noise(16, 16, 3)).save(file, kind, **({} if kind in ("GIF", "BMP") else {"exif": tags}))
        whole = np.frombuffer(file.getvalue(), np.uint8)
        for _ in range(60):
            data = whole.copy()
            where = random.integers(0, min(len(data), 400), 4)
            data[where] = random.integers(0, 256, 4)
            path.write_bytes(data.tobytes()[: random.integers(len(data) // 2, len(data) + 1)])
            try:
                read_picture(path, limit=1_000_000)
            except ImageError:
                failed += 1
    assert failed > 100


@pytest.mark.parametrize(
    "error",
    [KeyError("tag"), struct.error("short"), zlib.error("bad"), MemoryError(), RecursionError(), SyntaxError("x")],
)
def test_whatever_a_decoder_raises(error, tmp_path, monkeypatch):
    def broken(self):
        raise error

    path = saved(Image.new("L", (4, 4), 255), tmp_path / "a.bmp")
    monkeypatch.setattr(BmpImagePlugin.BmpImageFile, "load", broken)
    for reader in (read_picture, read_hole):
        with pytest.raises(ImageError, match=r"a\.bmp"):
            reader(path)


def test_what_a_decoder_warns_of_is_a_note(tmp_path, monkeypatch):
    whole = BmpImagePlugin.BmpImageFile.load

    def grumbling(self):
        warnings.warn("this looks odd", stacklevel=1)
        return whole(self)

    path = saved(Image.new("L", (4, 4), 255), tmp_path / "a.bmp")
    monkeypatch.setattr(BmpImagePlugin.BmpImageFile, "load", grumbling)
    assert read_picture(path).notes == ("this looks odd",)
    assert read_hole(path).notes == ("this looks odd",)


def test_formats_that_are_not_asked_for_are_not_tried(tmp_path):
    """Among Pillow's readers are some that start other programs; a name does not choose the reader either."""
    for kind in ("EPS", "PCX", "TGA"):
        Image.new("RGB", (4, 4)).save(tmp_path / "a.png", kind)
        with pytest.raises(ImageError, match="not a picture that can be read"):
            read_picture(tmp_path / "a.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", "JPEG")
    assert read_picture(tmp_path / "a.png").size == (4, 4)


def test_the_limit_is_a_parameter(tmp_path):
    path = saved(Image.new("L", (100, 10), 255), tmp_path / "a.png")
    before = Image.MAX_IMAGE_PIXELS
    assert read_picture(path, limit=1000).size == (10, 100)
    for limit in (999, 400):
        with pytest.raises(ImageError, match=r"a\.png.*pixels"):
            read_picture(path, limit=limit)
        with pytest.raises(ImageError, match=r"a\.png.*pixels"):
            read_hole(path, limit=limit)
    with pytest.raises(ImageError, match="100 x 10"):
        picture_from(Image.new("L", (100, 10)), limit=999)
    assert before == Image.MAX_IMAGE_PIXELS


def test_pillows_own_limit_does_not_rule(tmp_path, monkeypatch):
    path = saved(Image.new("L", (100, 10), 255), tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert read_picture(path).size == (10, 100)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(ImageError, match="no such file"):
        read_picture(tmp_path / "missing.png")
    with pytest.raises(ImageError, match="folder"):
        read_picture(tmp_path)
    with pytest.raises(ImageError, match="cannot be opened"):
        read_picture("a\0b.png")
    with pytest.raises(ImageError, match="cannot be opened"):
        read_picture("a" * 5000)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="regular file"):
        read_picture(tmp_path / "pipe.png")


def test_a_damaged_exif_block_does_not_cost_the_picture(tmp_path):
    Image.new("RGB", (8, 4), "red").save(
        tmp_path / "a.png", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01\x0f\0\x02" * 9
    )
    picture = read_picture(tmp_path / "a.png")
    assert picture.size == (4, 8)


def test_of_an_animation_the_first_picture_is_used(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    picture = read_picture(tmp_path / "a.gif")
    assert (picture.levels == (255, 0, 0)).all()
    assert "first" in picture.notes[0]


def test_many_threads_at_once(tmp_path):
    (tmp_path / "a.png").write_bytes(png(noise(40, 40, 3, dtype=np.uint16)))
    before, found = Image.MAX_IMAGE_PIXELS, []

    def work():
        found.extend(int(read_picture(tmp_path / "a.png").levels.sum()) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [int(noise(40, 40, 3, dtype=np.uint16).sum())] * 40
    assert before == Image.MAX_IMAGE_PIXELS


# ---- Writing


def test_existing_files_and_inputs_are_safe(tmp_path):
    photo, other = tmp_path / "photo.png", tmp_path / "other.png"
    picture = picture_from(noise(4, 4, 3))
    write(picture, photo)
    write(picture, other)
    before = photo.read_bytes()
    new = picture_from(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ImageError, match=r"photo\.png: exists already.*--force"):
        write(new, photo)
    (tmp_path / "link.png").symlink_to(photo)
    (tmp_path / "hard.png").hardlink_to(photo)
    (tmp_path / "sub").mkdir()
    for path in (
        photo,
        str(photo),
        tmp_path / "sub" / ".." / "photo.png",
        tmp_path / "link.png",
        tmp_path / "hard.png",
    ):
        with pytest.raises(ImageError, match="never overwritten"):
            write(new, path, force=True, inputs=[other, str(photo)])
    assert photo.read_bytes() == before
    write(new, other, force=True, inputs=[photo])
    assert (stored(other) == 0).all()
    missing = tmp_path / "later.png"
    with pytest.raises(ImageError, match="never overwritten"):
        images.check_target(missing, inputs=[missing])
    assert not list(tmp_path.glob(".*"))


def test_targets_that_cannot_be(tmp_path):
    picture = picture_from(noise(4, 4, 3))
    for name in ("a.xyz", "a", "a.gif"):
        with pytest.raises(ImageError, match=r"\.png, \.webp, \.tif, \.tiff, \.jpg, \.jpeg"):
            write(picture, tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ImageError, match="is a folder"):
        write(picture, tmp_path / "folder.png", force=True)
    with pytest.raises(ImageError, match="there is no folder"):
        write(picture, tmp_path / "missing" / "a.png")
    for name in ("a" * 300 + ".png", "a\0.png"):
        with pytest.raises(ImageError, match="cannot be written"):
            write(picture, tmp_path / name)
    with pytest.raises(ImageError, match="16383"):
        write(Picture(levels=np.zeros((1, 16384, 1), np.uint8)), tmp_path / "a.webp")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.png"]


def test_nothing_half_is_left(tmp_path, monkeypatch):
    picture = picture_from(noise(4, 4, 3))
    write(picture, tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()

    def full(_):
        assert len(list(tmp_path.iterdir())) == 2  # it was under another name
        assert (tmp_path / "a.png").read_bytes() == before
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ImageError, match=r"a\.png: cannot be written: No space left"):
        write(picture_from(noise(9, 9, 3)), tmp_path / "a.png", force=True)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(picture, tmp_path / "b.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == before


def test_who_reads_the_old_file_reads_it_to_the_end(tmp_path):
    write(picture_from(noise(4, 4, 3)), tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    with (tmp_path / "a.png").open("rb") as file:
        write(picture_from(noise(9, 9, 3)), tmp_path / "a.png", force=True)
        assert file.read() == before
    assert (stored(tmp_path / "a.png") == noise(9, 9, 3)).all()


def test_a_result_is_as_readable_as_any_new_file(tmp_path):
    write(picture_from(noise(4, 4, 3)), tmp_path / "a.png")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a.png").stat().st_mode == (tmp_path / "b").stat().st_mode


# ---- What Pillow alone gets wrong, or leaves out


def hand_tiff(width, height, strips, bits, *, channels=1, rows=None, planar=1):
    """A little-endian TIFF made by hand, of any strips; grey, or RGB."""
    data, places = b"", []
    for strip in strips:
        places.append(8 + len(data))
        data += strip + b"\0" * (len(strip) % 2)
    more = b""
    start = 8 + len(data)
    rows = rows or height

    def several(values, code):
        nonlocal more
        packed = struct.pack(f"<{len(values)}{code}", *values)
        if len(packed) <= 4:
            return packed.ljust(4, b"\0")
        more += packed
        return struct.pack("<I", start + len(more) - len(packed))

    kinds = {3: "H", 4: "I"}
    entries = [
        (256, 3, [width]), (257, 3, [height]), (258, 3, [bits] * channels), (259, 3, [1]),
        (262, 3, [2 if channels == 3 else 1]), (273, 4, places), (277, 3, [channels]), (278, 4, [rows]),
        (279, 4, [len(strip) for strip in strips]), (284, 3, [planar]),
    ]  # fmt: skip
    table = [
        struct.pack("<HHI", tag, kind, len(values)) + several(values, kinds[kind]) for tag, kind, values in entries
    ]
    body = struct.pack("<H", len(table)) + b"".join(table) + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", start + len(more)) + data + more + body


def test_planes_of_16_bits_are_refused_and_of_8_bits_read():
    deep, plain = noise(4, 5, 3, dtype=np.uint16), noise(4, 5, 3)
    planes = [deep[..., k].astype("<u2").tobytes() for k in range(3)]
    with pytest.raises(ImageError, match="planes of their own"):
        picture_from(hand_tiff(5, 4, planes, 16, channels=3, planar=2))
    read = picture_from(hand_tiff(5, 4, [plain[..., k].tobytes() for k in range(3)], 8, channels=3, planar=2))
    assert np.array_equal(read.levels, plain)


def test_a_tiff_without_some_of_its_rows_is_damaged():
    levels = noise(6, 7)
    strips = [row.tobytes() for row in levels]
    assert np.array_equal(picture_from(hand_tiff(7, 6, strips, 8, rows=1)).levels[..., 0], levels)
    with pytest.raises(ImageError, match="rows are missing"):
        picture_from(hand_tiff(7, 6, strips[:3], 8, rows=1))


def test_levels_of_12_bits_are_brought_to_16():
    read = picture_from(hand_tiff(2, 1, [bytes([0x00, 0x0F, 0xFF])], 12))  # 0 and 4095
    assert read.levels.ravel().tolist() == [0, 65535]
    assert any("12 bits" in each for each in read.notes)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_transparent_level_of_a_grey_png(bits):
    level = 1
    row = 0
    for k in range(2):  # two pixels: the transparent level, and 0
        row |= (level if k == 0 else 0) << (bits * (8 // bits - 1 - k) if bits < 8 else 0)
    data = bytes([row]) if bits < 8 else bytes([level, 0])
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, bits, 0, 0, 0, 0))
    body = chunk(b"tRNS", struct.pack(">H", level)) + chunk(b"IDAT", zlib.compress(b"\0" + data)) + chunk(b"IEND", b"")
    read = picture_from(b"\x89PNG\r\n\x1a\n" + header + body)
    assert read.alpha is not None
    assert read.alpha.tolist() == [[0, 255]]
    assert read.levels.ravel().tolist() == [255 // ((1 << bits) - 1), 0]


@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff", "webp"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_resolution_turns_with_the_picture_and_survives(suffix, orientation, tmp_path):
    tags = Image.Exif()
    tags[0x0112] = orientation
    file = tmp_path / f"photo.{suffix}"
    if suffix == "webp":  # which has no other place for it
        tags[282], tags[283], tags[296] = 100.0, 200.0, 2
        Image.new("RGB", (6, 4)).save(file, exif=tags)
    else:
        Image.new("RGB", (6, 4)).save(file, exif=tags, dpi=(100, 200))
    read = read_picture(file)
    upright = (100, 200) if orientation == 1 else (200, 100)
    assert read.dpi == pytest.approx(upright, rel=1e-3)
    for target in ("png", "tiff", "webp", "jpg"):
        write(read, tmp_path / f"made.{target}", force=True)
        assert read_picture(tmp_path / f"made.{target}").dpi == pytest.approx(upright, rel=1e-3)


def test_centimetres_are_no_inches(tmp_path):
    tags = Image.Exif()
    tags[282], tags[283], tags[296] = 100.0, 50.0, 3
    Image.new("RGB", (6, 4)).save(tmp_path / "a.webp", exif=tags)
    assert read_picture(tmp_path / "a.webp").dpi == pytest.approx((254.0, 127.0))


def test_a_resolution_that_jpeg_cannot_hold_is_left_out(tmp_path):
    picture = Picture(levels=noise(4, 4, 3), dpi=(70_000.0, 70_000.0))
    assert any("resolution" in each for each in write(picture, tmp_path / "a.jpg"))
    assert read_picture(tmp_path / "a.jpg").dpi is None


def test_a_large_profile_comes_back_from_our_own_png(tmp_path):
    profile = SRGB + bytes(3_000_000)
    for dtype in (np.uint8, np.uint16):
        write(Picture(levels=noise(4, 4, 3, dtype=dtype), profile=profile), tmp_path / "a.png", force=True)
        before = PngImagePlugin.MAX_TEXT_CHUNK
        assert read_picture(tmp_path / "a.png").profile == profile
        assert before == PngImagePlugin.MAX_TEXT_CHUNK


def test_a_preview_is_left_out_wherever_it_hides(tmp_path):
    shown = io.BytesIO()
    Image.new("RGB", (8, 8)).save(shown, "JPEG")
    for part, tag in ((None, 0x501B), (0x8769, 0x9286), (0x8769, 0x927C), (None, 65000)):
        tags = Image.Exif()
        tags[271] = "maker"
        (tags if part is None else tags.get_ifd(part))[tag] = shown.getvalue()
        Image.new("RGB", (6, 4)).save(tmp_path / "a.jpg", exif=tags)
        assert b"\xff\xd8\xff" in (tmp_path / "a.jpg").read_bytes()[3:]
        read = read_picture(tmp_path / "a.jpg")
        assert read.exif is not None
        assert b"\xff\xd8\xff" not in read.exif
        assert b"maker" in read.exif
        assert any("left out" in each for each in read.notes), hex(tag)


def test_the_size_that_exif_tells_is_left_out():
    tags = Image.Exif()
    tags[271] = "maker"
    tags.get_ifd(0x8769).update({0xA002: 6, 0xA003: 4, 0x9291: "12"})
    file = io.BytesIO()
    Image.new("RGB", (6, 4)).save(file, "JPEG", exif=tags)
    read = picture_from(file.getvalue())
    kept = Image.Exif()
    kept.load(read.exif)
    assert set(kept.get_ifd(0x8769)) == {0x9291}


def test_two_pictures_in_a_jpeg_are_said():
    file = io.BytesIO()
    Image.new("RGB", (6, 4)).save(file, "MPO", save_all=True, append_images=[Image.new("RGB", (6, 4))])
    assert any("several pictures" in each for each in picture_from(file.getvalue()).notes)


@pytest.mark.parametrize("top", [1, 2, 8])
def test_numbers_of_parts_are_no_levels_of_a_mask(top):
    parts = np.zeros((6, 6), np.uint8)
    parts[2:4] = np.linspace(0, top, 6).round()
    for invert in (False, True):
        with pytest.raises(ImageError, match=f"multiply it by {255 / top:.5g}"):
            read_hole(parts, invert=invert)


def test_a_target_is_looked_at_before_the_work_also_where_folders_are_missing(tmp_path, monkeypatch):
    images.check_target(tmp_path / "new/deep/a.png", parents=True)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ImageError, match="there is no folder"):
        images.check_target(tmp_path / "new/a.png")
    with pytest.raises(ImageError, match="suffix"):
        images.check_target(tmp_path / "new/a.bmp", parents=True)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(ImageError, match="there is no folder"):
        images.check_target(tmp_path / "file/a.png", parents=True)
    monkeypatch.setattr(os, "access", lambda path, how: False)  # as for who is not root
    with pytest.raises(ImageError, match="may not write"):
        images.check_target(tmp_path / "new/a.png", parents=True)
