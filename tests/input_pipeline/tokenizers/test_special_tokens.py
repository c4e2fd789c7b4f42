"""Special tokens of published tokenizers: read off the post-processor, written, trained with."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from experiment.schema import ConfigError
from input_pipeline import task_spec
from input_pipeline.objectives.causal_lm import causal_lm
from input_pipeline.objectives.classify_text import classify_text
from input_pipeline.objectives.masked_lm import masked_lm
from input_pipeline.objectives.prefix_lm import prefix_lm_pair
from input_pipeline.objectives.seq2seq import seq2seq
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.published_specials import as_published
from input_pipeline.tokenizers.special_tokens import (
    Template,
    bert_like,
    read_template,
    with_template,
)
from input_pipeline.tokenizers.subword import SubwordTokenizer
from input_pipeline.tokenizers.tokenizer import load_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS
from tests.tiny import data_config, masking

S, END, A, B, UNKNOWN, MASK = range(6)
NAMES = [("<s>", S), ("</s>", END)]
ROLES = dict(pad=END, bos=S, eos=END, mask=MASK, cls=S, sep=END)
LLAMA = processors.TemplateProcessing(
    single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=NAMES
)
PROCESSORS = {
    "none": (None, Template()),
    "byte_level": (processors.ByteLevel(), Template()),
    "bert": (processors.BertProcessing(("</s>", END), ("<s>", S)), bert_like(S, END)),
    "roberta": (
        processors.RobertaProcessing(("</s>", END), ("<s>", S)),
        Template((S,), (END,), ((S,), (END, END), (END,)), ((0,), (0, 0), (0,)), (0, 0)),
    ),
    "llama": (LLAMA, Template((S,), (), ((S,), (S,), ()), ((0,), (1,), ()))),
    "sequence": (
        processors.Sequence([processors.ByteLevel(), LLAMA]),
        Template((S,), (), ((S,), (S,), ()), ((0,), (1,), ())),
    ),
}


def content(processor=None):
    vocab = {"<s>": S, "</s>": END, "a": A, "b": B, "?": UNKNOWN, "<mask>": MASK}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    return tokenizer.to_str(pretty=True)


def published(processor):
    return SubwordTokenizer(content(processor), ROLES, (), {"post_processor": True})


def ids(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_template_is_read_from_the_post_processor(name):
    processor, expected = PROCESSORS[name]
    assert read_template(Tokenizer.from_str(content(processor))) == expected
    assert published(processor).template == expected
    plain = SubwordTokenizer(content(processor), ROLES)
    assert plain.template is None, "runs from nothing keep the objective's own special tokens"
    assert plain.causal_prefix == (S,)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_written_template_is_applied_by_the_library(name):
    processor, template = PROCESSORS[name]
    assert with_template(content(processor), template) == content(processor)
    written = Tokenizer.from_str(
        with_template(content(LLAMA if name != "llama" else None), template)
    )
    written.no_truncation()
    written.no_padding()
    assert read_template(written) == template
    theirs = Tokenizer.from_str(content(processor))
    theirs.no_truncation()
    theirs.no_padding()
    for texts in (["a b a"], ["a", "b b"]):
        ours, expected = written.encode(*texts), theirs.encode(*texts)
        assert (ours.ids, ours.type_ids) == (expected.ids, expected.type_ids)
        row = template.with_special_tokens(
            [ids(*theirs.encode(t, add_special_tokens=False).ids) for t in texts]
        )
        assert row["inputs"].tolist() == expected.ids
        assert row["is_text"].tolist() == [not each for each in expected.special_tokens_mask]
        if len(texts) == 2:
            assert row["token_types"].tolist() == expected.type_ids


def test_running_text_has_what_the_tokenizer_puts_in_front():
    """Where that is nothing, the first id is read and not predicted."""
    row = {"text": ids(A, B, B)}
    bare = causal_lm(row, None, tokenizer=published(None))
    assert bare["inputs"].tolist() == [A, B]
    assert bare["targets"].tolist() == [B, B] and bare["weights"].tolist() == [1, 1]
    framed = causal_lm(row, None, tokenizer=published(LLAMA))
    assert framed["inputs"].tolist() == [S, A, B]
    assert framed["targets"].tolist() == [A, B, B] and framed["weights"].all()
    two = processors.TemplateProcessing(single="<s> </s> $A", special_tokens=NAMES)
    double = causal_lm(row, None, tokenizer=published(two))
    assert double["inputs"].tolist() == [S, END, A, B]
    assert double["weights"].tolist() == [0, 1, 1, 1], "special tokens are not predicted"


@pytest.mark.parametrize(("processor", "start"), [(None, []), (LLAMA, [S])])
def test_a_prefix_ends_where_prediction_begins(processor, start):
    row = {"source": ids(A, B), "target": ids(B)}
    fields = prefix_lm_pair(row, None, tokenizer=published(processor))
    tokens = [*start, A, B, END, B, END]
    given = len(start) + 3  # source and sep
    assert fields["inputs"].tolist() == tokens[:-1]
    assert fields["prefix"].tolist() == [place < given for place in range(len(tokens) - 1)]
    predicted = fields["targets"][fields["weights"]]
    assert predicted.tolist() == [B, END]


@pytest.mark.parametrize("name", PROCESSORS)
def test_rows_are_as_long_as_the_config_says(name):
    """The longest text that a side has room for fills its columns, and no more."""
    tokenizer = published(PROCESSORS[name][0])
    data = data_config(length=16, encoder_length=12)
    for objective, kind in [
        ("causal_lm", "documents"),
        ("prefix_lm", "documents"),
        ("prefix_lm", "pairs"),
        ("masked_lm", "documents"),
        ("seq2seq", "pairs"),
        ("classify_text", "labelled"),
    ]:
        chosen = task_spec.choose_task_spec(objective, kind, data, tokenizer, masking())
        row = {"label": 0}
        for sequence in chosen.sequences:
            share = sequence.room // len(sequence.fields)
            for place, field in enumerate(sequence.fields):
                rest = sequence.room - share * (len(sequence.fields) - 1)
                row[field] = np.full(rest if place == 0 else share, A, np.int32)
        fields = chosen.fields(row, np.random.default_rng(0))
        assert len(fields["inputs"]) == data.length, (objective, kind)
        if objective == "seq2seq":
            assert len(fields["encoder_inputs"]) == data.encoder_length


def test_only_text_is_masked_between_published_special_tokens():
    tokenizer, rng = published(PROCESSORS["roberta"][0]), np.random.default_rng(0)
    row = {"text": np.full(6, A, np.int32)}
    fields = masked_lm(row, rng, tokenizer=tokenizer, noise_rate=1.0, whole_words=False)
    assert fields["weights"].tolist() == [0, *[1] * 6, 0]
    pair = {"text": ids(A), "text_pair": ids(B), "label": 1}
    fields = classify_text(pair, rng, tokenizer=tokenizer, noise_rate=0.0)
    assert fields["inputs"].tolist() == [S, A, END, END, B, END]
    assert not fields["token_types"].any()


def test_a_target_ends_even_where_a_source_does_not():
    row = {"source": ids(A), "target": ids(B)}
    fields = seq2seq(row, None, tokenizer=published(None))
    assert fields["encoder_inputs"].tolist() == [A]
    assert fields["inputs"].tolist() == [S, B] and fields["targets"].tolist() == [B, END]


def test_the_language_of_a_source_is_no_part_of_a_target():
    """mBART's tokenizer writes the source's language behind a source, mBART-50's before it."""
    row = {"source": ids(A), "target": ids(B, B)}
    behind = processors.TemplateProcessing(single="$A </s> a", special_tokens=[*NAMES, ("a", A)])
    fields = seq2seq(row, None, tokenizer=published(behind))
    assert fields["encoder_inputs"].tolist() == [A, END, A]
    assert fields["inputs"].tolist() == [S, B, B] and fields["targets"].tolist() == [B, B, END]
    before = processors.TemplateProcessing(single="a $A </s>", special_tokens=[*NAMES, ("a", A)])
    fields = seq2seq(row, None, tokenizer=published(before))
    assert fields["encoder_inputs"].tolist() == [A, A, END]
    assert fields["inputs"].tolist() == [S, B, B] and fields["targets"].tolist() == [B, B, END]
    both = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=NAMES)  # BART's
    fields = seq2seq(row, None, tokenizer=published(both))
    assert fields["targets"].tolist() == [S, B, B, END]


def test_the_record_keeps_template_and_chat_template(tmp_path):
    tokenizer = SubwordTokenizer(content(None), ROLES).as_published(
        content(LLAMA), "{{ messages }}"
    )
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.template == tokenizer.template and loaded.digest == tokenizer.digest
    assert loaded.published["chat_template"] == "{{ messages }}"
    assert loaded.with_roles({"pad": S}).template == tokenizer.template
    record = tmp_path / "tokenizer_roles.json"
    changed = json.loads(record.read_text()) | {"post_processor": False}
    record.write_text(json.dumps(changed))
    with pytest.raises(ConfigError, match="has changed since it was saved"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "model_type", "expected"),
    [
        ("t5", "t5", (0, 1)),
        ("llama", "llama", (0, 0)),
        ("bert_cased", "bert", (1, 1)),
        ("bert_uncased", "distilbert", (1, 1)),
        ("gpt2", "gpt2", (0, 0)),
        ("library", "llama", (1, 1)),  # its own post-processor says so
    ],
)
def test_files_without_a_post_processor_are_framed_as_their_class_does(name, model_type, expected):
    """How many special tokens stand in front of a text and behind it."""
    tokenizer = as_published(open_tokenizer(PATHS[name]), PATHS[name], model_type)
    assert (len(tokenizer.template.prefix), len(tokenizer.template.suffix)) == expected
    plain = open_tokenizer(PATHS[name])
    assert plain.template is None and plain.encode("ab").tolist() == tokenizer.encode("ab").tolist()


def test_source_eos_can_be_switched_off():
    plain = open_tokenizer(PATHS["t5"])
    tokenizer = as_published(plain, PATHS["t5"], "t5", source_eos=False)
    assert tokenizer.source_affixes == ((), ())
    assert tokenizer.target_affixes == ((), (plain.eos_id,))
