"""Only PNG and JPEG are decoded: other formats never reach the programs that Pillow hands them to.

Pillow goes by the content of a file and gives EPS to Ghostscript. Here a program named `gs` is on
PATH that does nothing but note its calls.
"""

import ast
import io
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import EpsImagePlugin, Image
from PIL.ImageFile import ImageFile

from experiment.schema import ConfigError
from inference.prompts import ImagePrompts
from input_pipeline.sources import huggingface_source, tfds_source
from input_pipeline.sources.base import BadRecordError
from input_pipeline.sources.files import images
from input_pipeline.sources.image_decoding import ImageSpec, read
from tests.tiny import data_config

ROOT = Path(__file__).resolve().parents[3]
EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 6 6
%%EndComments
0 0 6 6 rectfill
%%EOF
"""


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The calls noted so far. Pillow alone is known to call the program."""
    log, program = tmp_path / "calls.log", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {log}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # what Pillow has found out so far
    with pytest.raises(OSError), Image.open(io.BytesIO(EPS)) as image:
        image.load()
    assert "-sDEVICE" in log.read_text()
    log.write_text("")
    return log


def encoded(format, **options):
    file = io.BytesIO()
    Image.fromarray(np.full((6, 6), 7, np.uint8)).save(file, format, **options)
    return file.getvalue()


def test_an_eps_in_a_folder_of_images_is_refused_by_name(calls, tmp_path):
    for split in ("train", "validation"):
        (tmp_path / split / "cat").mkdir(parents=True)
        (tmp_path / split / "cat" / "a.png").write_bytes(encoded("PNG"))
    (tmp_path / "train/cat/z.jpg").write_bytes(EPS)
    data = data_config(source="image_files", path=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ConfigError) as refusal:
        images.load(data)
    assert calls.read_text() == ""
    assert "train/cat/z.jpg is not a PNG or JPEG image" in str(refusal.value)


def test_an_eps_as_a_prompt_is_refused_by_name(calls, tmp_path):
    (tmp_path / "z.jpg").write_bytes(EPS)
    prompt = ImagePrompts(6, 1, data_config())
    with pytest.raises(ConfigError) as refusal:
        prompt(str(tmp_path / "z.jpg"), "--prompt")
    assert calls.read_text() == ""
    assert "z.jpg is not a PNG or JPEG image" in str(refusal.value)


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_unsupported_image_formats_are_refused(tmp_path, format):
    (tmp_path / "a.png").write_bytes(encoded(format))
    with pytest.raises(ConfigError, match=r"a\.png is not a PNG or JPEG image"):
        ImagePrompts(6, 1, data_config())(str(tmp_path / "a.png"), "--prompt")


def test_a_jpeg_of_several_pictures_is_still_a_jpeg(tmp_path):
    """As some phones save them; Pillow knows it by another name, MPO."""
    more = [Image.fromarray(np.full((6, 6), 9, np.uint8))]
    (tmp_path / "a.jpg").write_bytes(encoded("MPO", save_all=True, append_images=more))
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "MPO"
    fields = ImagePrompts(6, 1, data_config())(str(tmp_path / "a.jpg"), "--prompt")
    np.testing.assert_allclose(fields["images"], np.full((6, 6, 1), 7 / 255), atol=0.01)


def test_hugging_face_decodes_no_column(calls, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    eps, png = ({"bytes": content, "path": None} for content in (EPS, encoded("PNG")))
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "thumbnail": datasets.Image(),
            "frames": datasets.Sequence(datasets.Image()),
            "scene": {"views": datasets.Sequence(datasets.Image())},
        }
    )
    beside = {"thumbnail": eps, "frames": [eps], "scene": {"views": [eps]}}
    rows = [{"image": image, "text": "a film", "label": 1, **beside} for image in (png, eps, png)]
    made = datasets.Dataset.from_list(rows, features=features)
    made.save_to_disk(tmp_path / "saved")
    cut = dict(train_split="train[:2]", eval_split="train[2:]", cache_dir=str(tmp_path / "cache"))
    data = data_config(source="huggingface", name=str(tmp_path / "saved"), kind="labelled", **cut)
    assert list(huggingface_source.load(data).train) == [{"text": "a film", "label": 1}] * 2
    data = data_config(source="huggingface", name=str(tmp_path / "saved"), kind="images", **cut)
    with pytest.raises(ConfigError, match="record 1: its image is not a PNG or JPEG image"):
        huggingface_source.load(data)
    assert calls.read_text() == ""


class TinyScenes(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        image = tfds.features.Image(shape=(None, None, 1))
        features = {
            "image": image,
            "text": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            "frames": tfds.features.Sequence(image),
            "scene": {"views": tfds.features.Sequence({"image": image})},
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(), "validation": self._generate_examples()}

    def _generate_examples(self):
        beside = {"frames": [EPS, EPS], "scene": {"views": [{"image": EPS}]}}
        yield 0, {"image": EPS, "text": "a film", "label": 1, **beside}


def test_tfds_decodes_no_field(calls, monkeypatch, tmp_path):
    tfds.disable_progress_bar()
    builder = TinyScenes(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    keys = dict(source="tfds", name="tiny_scenes", cache_dir=str(tmp_path / "cache"))
    text = tfds_source.load(data_config(kind="labelled", **keys))
    assert list(text.train) == [{"text": "a film", "label": 1}]
    with pytest.raises(ConfigError, match="its image is not a PNG or JPEG image"):
        tfds_source.load(data_config(kind="images", **keys))
    assert calls.read_text() == ""


def test_pixels_are_counted_before_they_are_decoded(monkeypatch, tmp_path):
    path, small = tmp_path / "bomb.png", tmp_path / "small.png"
    Image.new("1", (9000, 8000)).save(path)  # 10 KB of file, 72 million pixels
    Image.new("L", (8, 8)).save(small)
    loads = []
    load = ImageFile.load
    monkeypatch.setattr(ImageFile, "load", lambda image: loads.append(image.size) or load(image))
    spec = ImageSpec("L", 8, resize=True)
    with pytest.raises(BadRecordError, match=r"bomb\.png has 9000x8000 pixels, more than 67"):
        read(path, spec)
    assert not loads
    assert read(small, spec).shape == (8, 8, 1) and loads


def test_a_pipe_is_no_image(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(BadRecordError, match=r"a\.png is a named pipe"):
        read(tmp_path / "a.png", ImageSpec("L", 8, resize=True))


def opened_without_formats(source):
    """The lines of a program that open an image of any format with Pillow."""
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = [(getattr(node, "module", ""), each, node) for node in imports for each in node.names]
    modules = {"PIL.Image"}
    modules |= {each.asname or each.name for module, each, _ in named if module == "PIL"}
    modules |= {each.asname for _, each, _ in named if each.name == "PIL.Image" and each.asname}
    lines = [n.lineno for module, each, n in named if (module, each.name) == ("PIL.Image", "open")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            opens = node.func.attr == "open" and ast.unparse(node.func.value) in modules
            if opens and "formats" not in [keyword.arg for keyword in node.keywords]:
                lines.append(node.lineno)
    return lines


def test_every_image_is_opened_with_the_formats_that_are_allowed():
    for line in (
        "from PIL import Image\nImage.open(file)",
        "from PIL import Image as Picture\nwith Picture.open(file) as picture: pass",
        "import PIL.Image\nPIL.Image.open(file, 'r').load()",
        "import PIL.Image as Picture\nPicture.open(file)",
        "\nfrom PIL.Image import open as read",
    ):
        assert opened_without_formats(line) == [2], line
    assert opened_without_formats("from PIL import Image\nImage.open(f, formats=['PNG'])") == []
    packages = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests"}
    paths = [*ROOT.glob("*.py"), *(path for each in packages for path in each.rglob("*.py"))]
    assert len(paths) > 100
    found = {str(path): opened_without_formats(path.read_text()) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}
