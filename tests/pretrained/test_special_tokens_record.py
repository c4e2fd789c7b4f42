"""An imported model is exported with the special tokens that its own files name."""

import json
import shutil
import types

import pytest
from tokenizers import Tokenizer

import convert
from input_pipeline.tokenizers.subword import TEXT_START
from pretrained import published_tokenizer
from pretrained.special_tokens_record import FILE_NAME, IDS
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_published_ids import (
    CONFIG,
    DECODERS,
    OTHERS,
    TOKENIZER_CONFIG,
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
    assert tokens_of(out) == dict(bos_token="<s>", eos_token="</s>", unk_token="[UNK]")
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
    assert before.special_tokens_map["eos_token" if kind != "bert" else "sep_token"]
    assert after.model_max_length == before.model_max_length
    assert (
        len(after)
        == len(before)
        == len(Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab())
    )
    theirs, ours = (hf.AutoConfig.from_pretrained(each) for each in (source, out))
    for key in IDS:
        assert getattr(ours, key, None) == getattr(theirs, key, None), key
