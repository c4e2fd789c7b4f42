"""Marian's tokenizer: source.spm and target.spm split texts, vocab.json has the ids of both.

The oracle is transformers' MarianTokenizer, which asks the sentencepiece library. Its ids differ in
two cases that are excluded by name here: neighbours that only the other language can spell, and
characters in parts, which the tokenizers library puts together less often.
"""

import io
import json
import shutil
import unicodedata

import pytest

from experiment.schema import ConfigError
from input_pipeline.tokenizers import sentencepiece
from input_pipeline.tokenizers.published_files import open_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS, read_ids, read_strings

STRINGS = read_strings()
SPECIAL = ("</s>", "<unk>", "<pad>")


def write_vocab(directory, pieces):
    """As Marian has it: </s>, <unk>, the pieces in an order of their own, <pad>."""
    text = sorted(set(pieces) - {*SPECIAL, "<s>"})
    vocab = {piece: id for id, piece in enumerate(["</s>", "<unk>", *text, "<pad>"])}
    (directory / "vocab.json").write_text(json.dumps(vocab))
    return vocab


def t5_pieces():
    """A unigram model that is there already, with ids that transformers gave: our source."""
    tokenizer, _ = sentencepiece.read(PATHS["t5"].read_bytes())
    return [tokenizer.id_to_token(id) for id in range(1800)]


@pytest.fixture
def directory(tmp_path):
    shutil.copy(PATHS["t5"], tmp_path / "source.spm")
    return tmp_path


def test_target_pieces_do_not_change_the_splitting(directory):
    pieces = t5_pieces()
    # Each word as a piece of the target, which would spell it at once.
    words = {f"▁{word}" for s in STRINGS for word in s.split() if "▁" not in word}
    words = {word for word in words if set(word) <= set(pieces)} - set(pieces)
    assert len(words) > 300
    vocab = write_vocab(directory, [*pieces, *words])
    tokenizer = open_tokenizer(directory / "source.spm")
    compared = 0
    for string, ids in zip(STRINGS, read_ids("t5"), strict=True):
        if max(ids, default=0) < len(pieces):  # no sentinel, which Marian lacks
            expected = [vocab[pieces[id]] for id in ids]
            assert tokenizer.encode(string).tolist() == expected, repr(string)
            compared += 1
    assert compared > 950
    for word in words:
        assert tokenizer.decode([vocab[word]]) == word[1:]


def test_ids_with_a_role_are_the_vocabularys(directory):
    vocab = write_vocab(directory, t5_pieces())
    tokenizer = open_tokenizer(directory / "source.spm")
    last = len(vocab) - 1
    # Nothing begins a text there, so padding begins an answer.
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (last, last, 0)
    assert tokenizer.vocab_size == len(vocab)
    assert tokenizer.encode("</s><pad>").tolist() == [0, last]
    assert tokenizer.decode([0, 1, last]) == ""


def test_target_only_pieces_are_spelt_by_character(directory):
    assert not {"☃", "☄", "☃☄"} & set(t5_pieces())
    vocab = write_vocab(directory, [*t5_pieces(), "☃", "☄", "☃☄", "▁☃", ">>fra<<"])
    tokenizer = open_tokenizer(directory / "source.spm")
    snowman, comet, unknown = vocab["☃"], vocab["☄"], vocab["<unk>"]
    ids = tokenizer.encode(">>fra<< ☃☄ \U0001f469").tolist()
    space = vocab["▁"]
    assert ids == [vocab[">>fra<<"], space, snowman, comet, space, unknown]
    assert tokenizer.unspelt("☃ \U0001f469") == "\U0001f469"


def test_pieces_without_an_id_are_spelt_by_others_and_named(directory, caplog):
    pieces = t5_pieces()
    longest = max((p for p in pieces if set(p) <= set(pieces) and p[0] == "▁"), key=len)
    vocab = write_vocab(directory, [piece for piece in pieces if piece != longest])
    tokenizer = open_tokenizer(directory / "source.spm")
    ids = tokenizer.encode(longest[1:]).tolist()
    assert len(ids) > 1 and vocab["<unk>"] not in ids
    assert tokenizer.decode(ids) == longest[1:]
    assert f"1 pieces of {directory / 'source.spm'} are not in vocab.json" in caplog.text
    assert longest in caplog.text
    assert f"{directory / 'target.spm'} is missing, so targets are split as a source" in caplog.text


def test_either_file_names_it_and_gpt2_keeps_its_own(directory, tmp_path):
    write_vocab(directory, t5_pieces())
    by_vocab = open_tokenizer(directory / "vocab.json")
    assert by_vocab.digest == open_tokenizer(directory / "source.spm").digest
    (directory / "source.spm").unlink()
    with pytest.raises(ConfigError, match=r"needs merges\.txt beside it"):
        open_tokenizer(directory / "vocab.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", None, "source.spm .*needs vocab.json beside it"),
        ("vocab.json", '{"<unk>": 0, "a": 2}', "ids of its vocabulary are not 0, 1, 2"),
        ("vocab.json", '{"<unk>": 0, "a": "b"}', "source.spm cannot be read"),
        ("vocab.json", '{"a": 0}', "its vocabulary has no <unk>"),
        ("vocab.json", "[]", "source.spm cannot be read"),
        ("tokenizer_config.json", '{"separate_vocabs": true}', "only a shared one is read"),
        ("source.spm", "{}", "source.spm cannot be read"),
    ],
)
def test_refusals_name_the_file_in_one_line(directory, name, content, message):
    write_vocab(directory, t5_pieces())
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as refusal:
        open_tokenizer(directory / "source.spm")
    assert len(str(refusal.value).splitlines()) == 1


def test_a_model_of_another_kind_is_refused(directory):
    shutil.copy(PATHS["llama"], directory / "source.spm")
    write_vocab(directory, ["a"])
    with pytest.raises(ConfigError, match="is not a unigram model"):
        open_tokenizer(directory / "source.spm")


def unknown_neighbours(string, model, vocab):
    """Whether the model cannot spell neighbours that the other language's can."""
    unknown = [p for p in model.encode(string, out_type=str) if model.piece_to_id(p) == 0]
    return any(len(part) > 1 and set(part) & vocab.keys() for part in unknown)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_ids_and_text_are_those_of_transformers(tmp_path):
    import sentencepiece as library
    import transformers

    # NFC: the tokenizers library leaves long characters in parts. It also takes \x85 for a space.
    strings = [unicodedata.normalize("NFC", s) for s in STRINGS if "\x85" not in s]
    models = {}
    for name, texts in (("source", strings[0::2]), ("target", strings[1::2])):
        model = io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=1500,
            character_coverage=0.99,
            num_threads=1,
            minloglevel=2,
        )
        (tmp_path / f"{name}.spm").write_bytes(model.getvalue())
        models[name] = library.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = {m.id_to_piece(id) for m in models.values() for id in range(1500)}
    vocab = write_vocab(tmp_path, [*pieces, ">>fra<<"])
    (tmp_path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    ours = open_tokenizer(tmp_path / "source.spm")
    assert len(theirs) == ours.vocab_size
    assert (ours.pad_id, ours.eos_id) == (theirs.pad_token_id, theirs.eos_token_id)

    plain = [s for s in strings if not unknown_neighbours(s, models["source"], vocab)]
    assert len(plain) > 800
    from_target_alone = 0
    for string in [*plain, f">>fra<< {plain[0]}", f"{plain[0]}</s> {plain[1]}"]:
        expected = theirs(string)["input_ids"]
        assert [*ours.encode(string).tolist(), ours.eos_id] == expected, repr(string)
        tokens = theirs.convert_ids_to_tokens(expected)
        from_target_alone += any(models["source"].piece_to_id(t) == 0 for t in tokens)
    assert from_target_alone > 20

    targets = [s for s in strings if not unknown_neighbours(s, models["target"], vocab)]
    assert len(targets) > 800
    others = 0
    for string, expected in zip(targets, theirs(text_target=targets)["input_ids"], strict=True):
        ids = ours.target.encode(string).tolist()
        assert [*ids, ours.eos_id] == expected, repr(string)
        others += ids != ours.encode(string).tolist()
    assert others > 300
    # Theirs strips what it decodes.
    for ids in theirs(text_target=strings)["input_ids"]:
        assert ours.decode(ids).strip() == theirs.decode(ids, skip_special_tokens=True)
    for id in set(vocab.values()) - {vocab[">>fra<<"]}:
        assert ours.decode([id]).strip() == theirs.decode([id], skip_special_tokens=True)
