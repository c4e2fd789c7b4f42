"""Marian splits sources by source.spm and targets by target.spm, with the ids of one vocabulary."""

import json
import shutil

import numpy as np
import pytest

import convert
import evaluate
import generate
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained.model_files import CONFIG
from pretrained.published_tokenizer import Languages
from tests.corpora import write
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_round_trip import sentencepiece_of
from tests.pretrained.transformers_models import oracle
from visualization.model_inputs import read_input

pytestmark = pytest.mark.usefixtures("compile_once")

PIECES = ["</s>", "<unk>", "▁", "▁Katze", "▁cat", "▁Ka", "tze", "▁c", "at", "▁sat", "<pad>"]
ID = {piece: id for id, piece in enumerate(PIECES)}
SPECIAL = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)]
# Each language spells its own word with one piece, and the other's with two.
SOURCE = [*SPECIAL, *((p, -1.0, 1) for p in ("▁", "▁cat", "▁Ka", "tze", "▁sat"))]
TARGET = [*SPECIAL, *((p, -1.0, 1) for p in ("▁", "▁Katze", "▁c", "at", "▁sat"))]
KATZE, CAT = [ID["▁Katze"]], [ID["▁c"], ID["at"]]  # as targets


def publish(directory, **more):
    """A Marian model of random weights, as on the hub."""
    shutil.copytree(FIXTURES / "marian", directory)
    end = ID["<pad>"]
    ids = dict(eos_token_id=0, pad_token_id=end, decoder_start_token_id=end)
    config = json.loads((directory / CONFIG).read_text()) | ids | more
    (directory / CONFIG).write_text(json.dumps(config))
    (directory / "source.spm").write_bytes(sentencepiece_of(SOURCE))
    (directory / "target.spm").write_bytes(sentencepiece_of(TARGET))
    (directory / "vocab.json").write_text(json.dumps(ID))
    return directory


@pytest.fixture(scope="module")
def imported(tmp_path_factory, compile_once):
    directory = tmp_path_factory.mktemp("marian")
    convert.convert(str(publish(directory / "published")), str(directory / "in"))
    return directory / "in"


def test_the_two_languages_are_split_differently(imported):
    tokenizer = loaded_run.load(imported).tokenizer
    assert tokenizer.encode("cat Katze").tolist() == [ID["▁cat"], ID["▁Ka"], ID["tze"]]
    assert tokenizer.target.encode("cat Katze").tolist() == CAT + KATZE
    assert tokenizer.decode(CAT + KATZE) == "cat Katze"


def test_a_prefix_and_a_target_are_of_the_target_language(imported):
    run = loaded_run.load(imported)
    (with_prefix,) = generate.generate(imported, ["cat"], prefix="Katze cat", max_new_tokens=2)
    assert with_prefix[0]["tokens"] <= 2
    given = read_input(run, "cat", "Katze cat")
    assert given.targets.tolist() == [*KATZE, *CAT, 0]
    assert given.fields["encoder_inputs"].tolist() == [ID["▁cat"], 0]


LINES = [("cat", "Katze"), ("sat cat", "sat cat Katze"), ("Katze sat", "cat")]


def scores(workdir, tmp_path, length=8):
    for language, texts in zip(("en", "de"), zip(*LINES, strict=True), strict=True):
        for split in ("train", "validation"):
            write(tmp_path / "data" / f"{split}.{language}", "".join(f"{t}\n" for t in texts))
    config = loaded_run.recorded_config(workdir)
    config["data"] |= dict(
        source="translation_files", path=str(tmp_path / "data"), source_language="en",
        target_language="de", length=length, encoder_length=length,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    config["eval"] |= dict(batch_size=2)
    return evaluate.evaluate(workdir, config=config)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Recommended")
def test_the_loss_on_targets_is_that_of_transformers(imported, tmp_path):
    torch, hf = oracle()
    published = imported.parent / "published"
    model, theirs = hf.MarianMTModel.from_pretrained(published), hf.MarianTokenizer
    theirs = theirs.from_pretrained(published, source_lang="en", target_lang="de")
    total = count = 0
    for source, target in LINES:
        batch = theirs([source], text_target=[target], return_tensors="pt")
        with torch.no_grad():
            loss = model(**batch).loss
        size = batch["labels"].numel()
        total, count = total + float(loss) * size, count + size
    assert count == 2 + 5 + 3  # by hand, with eos
    ours = scores(imported, tmp_path)["eval/validation/loss"]
    np.testing.assert_allclose(ours, total / count, rtol=1e-5)


def test_an_export_keeps_the_target_language(imported, tmp_path, caplog):
    convert.convert(str(imported), str(tmp_path / "out"))
    assert "only convert.py reads target_tokenizer.json" in caplog.text
    convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
    before, after = (loaded_run.load(each).tokenizer for each in (imported, tmp_path / "again"))
    for text in ("cat Katze", "sat"):
        assert after.encode(text).tolist() == before.encode(text).tolist()
        assert after.target.encode(text).tolist() == before.target.encode(text).tolist()
    vocabulary = json.loads((tmp_path / "out" / "target_tokenizer.json").read_text())
    vocabulary["model"]["vocab"].reverse()
    (tmp_path / "out" / "target_tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(ConfigError, match=r"target_tokenizer\.json .*not those of tokenizer\.json"):
        convert.convert(str(tmp_path / "out"), str(tmp_path / "third"))


def test_a_target_language_belongs_to_the_source(tmp_path):
    directory = publish(tmp_path / "published")
    with pytest.raises(ConfigError, match="at the start of a source"):
        convert.convert(str(directory), str(tmp_path / "in"), languages=Languages(target="<pad>"))


def test_a_damaged_target_is_refused_by_name(tmp_path):
    directory = publish(tmp_path / "published")
    (directory / "target.spm").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"target\.spm cannot be read as a tokenizer"):
        convert.convert(str(directory), str(tmp_path / "in"))
