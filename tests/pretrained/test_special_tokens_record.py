"""An imported model is exported with the special tokens that its own files name."""

import dataclasses
import json
import shutil
import types

import pytest
from tokenizers import Tokenizer

import convert
from checkpointing import loaded_run, provenance
from input_pipeline.tokenizers.subword import TEXT_START
from pretrained import published_tokenizer, special_tokens_record
from pretrained.special_tokens_record import FILE_NAME, IDS, SpecialTokensRecord
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_published_ids import (
    CONFIG,
    DECODERS,
    OTHERS,
    TOKENIZER_CONFIG,
    WORDS,
    word_tokenizer,
    write_files,
    write_model,
)
from tests.pretrained.transformers_models import oracle


def there_and_back(tmp_path, source, name="out"):
    if not (tmp_path / "in").exists():
        convert.convert(str(source), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / name))
    return tmp_path / name


def tokens_of(directory):
    config = json.loads((directory / TOKENIZER_CONFIG).read_text())
    return {key: value for key, value in config.items() if key.endswith("_token")}


def ids_of(directory):
    config = json.loads((directory / CONFIG).read_text())
    return {key: config[key] for key in IDS if key in config}


@pytest.mark.parametrize("length", [None, 60])
def test_special_tokens_go_out_as_they_came_in(length, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "llama", source)
    config = json.loads((source / CONFIG).read_text())
    del config["pad_token_id"]
    (source / CONFIG).write_text(json.dumps(config))
    named = dict(bos_token="<s>", eos_token="</s>", unk_token=dict(content="[UNK]", lstrip=True))
    named |= dict(pad_token=None, cls_token="not in the vocabulary")
    more = {} if length is None else dict(model_max_length=length)
    word_tokenizer(source, tokenizer_class="PreTrainedTokenizerFast", **named, **more)
    out = there_and_back(tmp_path, source)
    named = dict(bos_token="<s>", eos_token="</s>", unk_token="[UNK]")
    # As in transformers, a token that the vocabulary lacks gets the next id.
    assert tokens_of(out) == dict(named, cls_token="not in the vocabulary")
    assert loaded_run.load(tmp_path / "in").tokenizer.cls_id == len(WORDS)
    assert ids_of(out) == ids_of(source) == dict(bos_token_id=1, eos_token_id=2)
    assert json.loads((out / TOKENIZER_CONFIG).read_text()).get("model_max_length") == length

    # Without the record, as in older workdirs, the roles of training are written.
    (tmp_path / "in" / FILE_NAME).unlink()
    older = there_and_back(tmp_path, source, "older")
    assert tokens_of(older).items() >= dict(unk_token="[UNK]", pad_token="<pad>").items()
    assert ids_of(older) == dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def test_the_start_of_a_decoder_is_a_special_token():
    """Otherwise transformers shows it in every decoded text."""
    names = dict(bos="[bos]", eos="[eos]", pad="[pad]")
    model = types.SimpleNamespace(family="encoder_decoder")

    def named(**roles):
        tokenizer = types.SimpleNamespace(role_names=names | roles, unknown_id=None)
        return published_tokenizer._names(tokenizer, model)

    assert named() == names
    assert named(bos="[pad]") == dict(eos="[eos]", pad="[pad]"), "T5's decoder starts with padding"
    assert named(**{TEXT_START: "<s>"}) == names | dict(bos="<s>"), "BART's forced start"


def test_older_files_name_special_tokens_in_a_map(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    word_tokenizer(source, unk_token="<s>")
    content = dict(unk_token="[UNK]", bos_token={"content": "cat"})
    (source / "special_tokens_map.json").write_text(json.dumps(content))
    assert tokens_of(there_and_back(tmp_path, source)) == dict(unk_token="[UNK]", bos_token="cat")


SIDES = dict(padding_side="left", truncation_side="left", clean_up_tokenization_spaces=True)
CAT = dict(content="cat", lstrip=True, special=True, __type="AddedToken")
TABLE = {}  # even an empty one
# tokenizer_config.json and special_tokens_map.json; the special tokens without a role; their names.
MORE_TOKENS = {
    "a list": (dict(additional_special_tokens=["[CLS]", CAT]), {}, ["[CLS]", "cat"], {}),
    "a newer list": (dict(extra_special_tokens=["[CLS]", "cat"]), {}, ["[CLS]", "cat"], {}),
    "an older file": ({}, dict(additional_special_tokens=["sat", "[SEP]"]), ["sat", "[SEP]"], {}),
    "both files": (
        dict(additional_special_tokens=["cat"]), dict(additional_special_tokens=["sat"]),
        ["cat"], {},
    ),
    "both files, newer": (
        dict(extra_special_tokens=["cat"]), dict(extra_special_tokens=["sat", "cat"]),
        ["cat", "sat"], {},
    ),
    "an older file that is not read": (
        dict(added_tokens_decoder=TABLE), dict(additional_special_tokens=["sat"]), [], {},
    ),
    "names": (
        dict(extra_special_tokens=dict(image_token="cat"), video_token="sat"), {},
        [], dict(image_token="cat", video_token="sat"),
    ),
    "names and a list": (
        dict(extra_special_tokens=dict(image_token="cat"), additional_special_tokens=["sat"]), {},
        ["sat"], dict(image_token="cat"),
    ),
}  # fmt: skip


def with_more_tokens(source, case):
    config, older, more, names = MORE_TOKENS[case]
    word_tokenizer(source, tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>", **config)
    if older:
        (source / "special_tokens_map.json").write_text(json.dumps(older))
    return more, names


@pytest.mark.parametrize("case", MORE_TOKENS)
def test_special_tokens_without_a_role_go_out_as_they_came_in(case, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    more, names = with_more_tokens(source, case)
    out = there_and_back(tmp_path, source)
    config = json.loads((out / TOKENIZER_CONFIG).read_text())
    assert config.get("additional_special_tokens", []) == more
    assert config.get("extra_special_tokens", {}) == names


@pytest.mark.parametrize("direction", ["left", "right", None, "nonsense"])
def test_the_side_of_padding_goes_out_as_it_came_in(direction, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    said = {} if direction is None else dict(SIDES, padding_side=direction)
    word_tokenizer(source, tokenizer_class="PreTrainedTokenizerFast", **said)
    config = json.loads((there_and_back(tmp_path, source) / TOKENIZER_CONFIG).read_text())
    said = {key: value for key, value in said.items() if value != "nonsense"}
    assert {key: config[key] for key in SIDES if key in config} == said


def test_malformed_lists_of_special_tokens_are_left_out(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "t5", source)
    for number, value in enumerate([7, [7, None, {}, "cat"], {"a_token": 7}, "cat"]):
        word_tokenizer(source, extra_special_tokens=value, extra_ids="many", eos_token="</s>")
        convert.convert(str(source), str(tmp_path / f"in{number}"))
        out = tmp_path / f"out{number}"
        convert.convert(str(tmp_path / f"in{number}"), str(out))
        config = json.loads((out / TOKENIZER_CONFIG).read_text())
        assert config.get("additional_special_tokens", []) == ["cat"] * (number == 1)
        assert "extra_special_tokens" not in config


def test_a_record_is_inherited_with_the_tokenizer(tmp_path):
    """A run that starts from GPT-2 is exported without padding that its files do not name."""
    source, workdir = tmp_path / "source", tmp_path / "in"
    shutil.copytree(FIXTURES / "gpt2", source)
    named = dict(eos_token="</s>", padding_side="left", additional_special_tokens=["[CLS]"])
    word_tokenizer(source, tokenizer_class="PreTrainedTokenizerFast", **named)
    convert.convert(str(source), str(workdir))
    published = SpecialTokensRecord(**json.loads((workdir / FILE_NAME).read_text()))
    assert dict(published.tokens) == dict(eos="</s>")

    def inherited(name, init_from=str(workdir), digest=None, **changes):
        """The record of a new run, which has a stale one of an attempt that failed."""
        run, loaded = tmp_path / name, loaded_run.load(workdir)
        run.mkdir()
        (run / FILE_NAME).write_text("stale")
        data = types.SimpleNamespace(tokenizer_digest=digest or loaded.tokenizer.digest)
        model = dataclasses.replace(loaded.model_config, **changes)
        provenance.inherit_special_tokens(init_from, model, data, run)
        return special_tokens_record.load(run)

    assert inherited("same") == published
    assert inherited("other_tokenizer", digest="other") is None
    assert inherited("from_scratch", init_from="") is None
    longer = inherited("longer", max_length=published_length(workdir) + 1)
    assert longer == dataclasses.replace(published, max_length=published_length(workdir) + 1)


def published_length(workdir):
    return loaded_run.load(workdir).model_config.max_length


def test_positions_of_roberta_start_after_the_id_that_is_written(tmp_path):
    """Its files may leave the id of padding to the default, 1, which moves the positions."""
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "roberta_masked_lm", source)
    config = json.loads((source / CONFIG).read_text())
    assert config.pop("pad_token_id") == 1
    (source / CONFIG).write_text(json.dumps(config))
    word_tokenizer(source)
    out = json.loads((there_and_back(tmp_path, source) / CONFIG).read_text())
    positions = config["max_position_embeddings"] - 2
    assert out["max_position_embeddings"] == positions + out["pad_token_id"] + 1


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [None, 60])
@pytest.mark.parametrize("case", [*DECODERS, *OTHERS])
def test_transformers_finds_the_same_special_tokens(case, length, tmp_path):
    _, hf = oracle()
    source = tmp_path / "source"
    source.mkdir()
    kind = write_files(case, source)
    if length is not None:
        path = source / TOKENIZER_CONFIG
        config = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(config | dict(model_max_length=length)))
    before, _ = write_model(source, kind)
    out = there_and_back(tmp_path, source)
    after = hf.AutoTokenizer.from_pretrained(out)
    assert after.special_tokens_map == before.special_tokens_map
    # Of the older file, transformers lists a part of the special tokens, and of an export all.
    is_older = case in ("xlm-roberta", "camembert")
    if not is_older:
        assert after.extra_special_tokens == before.extra_special_tokens
        assert after.all_special_ids == before.all_special_ids
    sentinels = [token for token in before.extra_special_tokens if token.startswith("<extra_id_")]
    assert len(sentinels) == (100 if kind == "t5" else 0)
    assert after.padding_side == before.padding_side
    assert before.padding_side == "left" or not case.startswith("llama_")
    assert before.special_tokens_map["sep_token" if kind in ("bert", "electra") else "eos_token"]
    assert after.model_max_length == before.model_max_length
    assert (
        len(after)
        == len(before)
        == len(Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab())
    )
    theirs, ours = (hf.AutoConfig.from_pretrained(each) for each in (source, out))
    for key in IDS:
        assert getattr(ours, key, None) == getattr(theirs, key, None), key


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MORE_TOKENS)
def test_transformers_finds_the_same_tokens_without_a_role(case, tmp_path):
    _, hf = oracle()
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    more, names = with_more_tokens(source, case)
    before = hf.AutoTokenizer.from_pretrained(source)
    after = hf.AutoTokenizer.from_pretrained(there_and_back(tmp_path, source))
    assert after.extra_special_tokens == before.extra_special_tokens == more
    assert after.special_tokens_map == before.special_tokens_map == dict(names, eos_token="</s>")
    assert set(after.all_special_tokens) == set(before.all_special_tokens)
    assert after.all_special_ids == before.all_special_ids
    ids = list(range(10))
    for skip in (False, True):
        assert after.decode(ids, skip_special_tokens=skip) == before.decode(
            ids, skip_special_tokens=skip
        )


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("direction", ["left", "right", None])
def test_transformers_pads_the_same_side(direction, tmp_path):
    _, hf = oracle()
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    said = {} if direction is None else dict(SIDES, padding_side=direction)
    word_tokenizer(source, tokenizer_class="PreTrainedTokenizerFast", pad_token="<pad>", **said)
    before = hf.AutoTokenizer.from_pretrained(source)
    after = hf.AutoTokenizer.from_pretrained(there_and_back(tmp_path, source))
    assert before.padding_side == (direction or "right")
    for key in SIDES:
        assert getattr(after, key) == getattr(before, key), key
    texts = ["cat", "cat sat mat"]
    ids = after(texts, padding=True)["input_ids"]
    assert ids == before(texts, padding=True)["input_ids"]
    assert (ids[0][0] == after.pad_token_id) == (direction == "left")
