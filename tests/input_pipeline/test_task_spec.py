import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import task_spec
from input_pipeline.objectives import OBJECTIVES
from input_pipeline.objectives.span_corruption import span_counts
from input_pipeline.rows import fit
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.tiny import data_config, masking


def choose(
    objective,
    kind,
    *,
    noise_rate=0.15,
    mean_span=3.0,
    whole_words=False,
    next_sentence=False,
    text_pairs=False,
    tokenizer=None,
    fim_rate=0.5,
    **keys,
):
    return task_spec.choose_task_spec(
        objective,
        kind,
        data_config(**{"length": 64, "encoder_length": 64, **keys}),
        tokenizer or ByteTokenizer(),
        task_spec.Masking(noise_rate, mean_span, whole_words, next_sentence, fim_rate=fim_rate),
        text_pairs=text_pairs,
    )


OBJECTIVES_FOR = {
    "pairs": ["seq2seq", "prefix_lm"],
    "documents": ["causal_lm", "fill_in_middle", "prefix_lm", "masked_lm", "span_corruption"],
    "labelled": ["classify_text", "masked_lm"],
    "images": ["classify_images"],
}


@pytest.mark.parametrize("kind", OBJECTIVES_FOR)
def test_an_objective_is_chosen_exactly_where_it_fits(kind):
    assert task_spec.objectives_for(kind) == OBJECTIVES_FOR[kind]
    for objective in OBJECTIVES:
        if objective in OBJECTIVES_FOR[kind]:
            assert choose(objective, kind).fields
        else:
            with pytest.raises(ConfigError, match=r"task\.objective=.*data\.source=.*choose one"):
                choose(objective, kind)


@pytest.mark.parametrize(
    ("objective", "kind", "changes", "message"),
    [
        ("seq2seq", "pairs", dict(length=1), "data.length=1 .* at least 2"),
        ("seq2seq", "pairs", dict(encoder_length=1), "data.encoder_length=1 .* at least 2"),
        ("prefix_lm", "pairs", dict(length=3), "data.length=3 .* at least 4"),
        ("prefix_lm", "documents", dict(length=1), "data.length=1 .* at least 2"),
        ("masked_lm", "documents", dict(length=2), "data.length=2 .* at least 3"),
        (
            "masked_lm",
            "documents",
            dict(length=4, next_sentence=True),
            "data.length=4 .* at least 5",
        ),
        ("classify_text", "labelled", dict(length=2), "data.length=2 .* at least 3"),
        ("classify_text", "labelled", dict(length=4, text_pairs=True), "data.length=4 .* least 5"),
        ("classify_text", "labelled", dict(packing=True), "data.packing=True .*classify_text"),
        ("span_corruption", "documents", dict(packing=True), "data.packing=True .* set it"),
        (
            "masked_lm",
            "documents",
            dict(packing=True, next_sentence=True),
            "data.packing=True .* task.next_sentence",
        ),
        ("causal_lm", "documents", dict(buckets=(16,)), "data.buckets .* set it"),
        ("seq2seq", "pairs", dict(over_long="split"), "data.over_long='split' .* truncate or drop"),
        ("classify_text", "labelled", dict(over_long="split"), "'split' is for text alone: a part"),
        ("span_corruption", "documents", dict(length=10), "data.length=10 .* at least 14"),
        (
            "span_corruption",
            "documents",
            dict(encoder_length=3),
            "data.encoder_length=3 .* at least 4",
        ),
        (
            "span_corruption",
            "documents",
            dict(length=999, encoder_length=999, mean_span=1.0),
            "data.encoder_length=999 .* raise task.mean_span",
        ),
        ("masked_lm", "labelled", dict(next_sentence=True), "task.next_sentence=True"),
    ],
)
def test_refusals_name_the_key_and_the_fix_in_one_line(objective, kind, changes, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        choose(objective, kind, **changes)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("objective", "kind", "role"),
    [
        ("causal_lm", "documents", "bos"),
        ("causal_lm", "documents", "eos"),
        ("prefix_lm", "documents", "bos"),
        ("prefix_lm", "pairs", "sep"),
        ("prefix_lm", "pairs", "eos"),
        ("seq2seq", "pairs", "bos"),
        ("seq2seq", "pairs", "eos"),
        ("masked_lm", "labelled", "mask"),
        ("masked_lm", "labelled", "cls"),
        ("masked_lm", "labelled", "sep"),
        ("classify_text", "labelled", "cls"),
        ("classify_text", "labelled", "sep"),
        ("span_corruption", "documents", "sentinels"),
        ("fill_in_middle", "documents", "sentinels"),
    ],
)
def test_a_vocabulary_without_a_special_the_objective_writes_is_refused(objective, kind, role):
    tokenizer = ByteTokenizer()
    missing = {"sentinel_count": 0} if role == "sentinels" else {f"{role}_id": None}
    vars(tokenizer).update(missing)
    expected = f"task.objective='{objective}' needs {role}, .*data.tokenizer='byte' lacks"
    with pytest.raises(ConfigError, match=expected) as refusal:
        choose(objective, kind, tokenizer=tokenizer)
    assert len(str(refusal.value).splitlines()) == 1


def test_start_ids_of_texts_count_towards_the_row_length():
    tokenizer = ByteTokenizer()
    tokenizer.text_start_ids = (tokenizer.cls_id,)
    text = tokenizer.encode("a" * 99)
    pairs = choose("seq2seq", "pairs", tokenizer=tokenizer, length=8, encoder_length=9)
    (source,), (target,) = (fit([text], sequence.room) for sequence in pairs.sequences)
    fields = pairs.fields({"source": source, "target": target}, np.random.default_rng(0))
    assert (len(fields["encoder_inputs"]), len(fields["inputs"])) == (9, 8)
    spans = choose("span_corruption", "documents", tokenizer=tokenizer, encoder_length=40)
    row = {"text": text[: spans.sequences[0].room]}
    assert len(spans.fields(row, np.random.default_rng(0))["encoder_inputs"]) == 40
    for objective, kind in [("seq2seq", "pairs"), ("span_corruption", "documents")]:
        least = 3 if kind == "pairs" else 5
        with pytest.raises(ConfigError, match=f"at least {least}"):
            choose(objective, kind, tokenizer=tokenizer, encoder_length=least - 1)


def test_an_auxiliary_masked_lm_needs_a_mask():
    tokenizer = ByteTokenizer()
    tokenizer.mask_id = None
    with pytest.raises(ConfigError, match=r"task\.objective='classify_text' needs mask, "):
        task_spec.choose_task_spec(
            "classify_text", "labelled", data_config(), tokenizer, masking(auxiliary=True)
        )


def test_only_special_ids_that_the_objective_uses_are_required():
    tokenizer = ByteTokenizer()
    vars(tokenizer).update(mask_id=None, cls_id=None, sep_id=None, sentinel_count=0)
    for kind, objective in [("documents", "causal_lm"), ("pairs", "seq2seq")]:
        assert choose(objective, kind, tokenizer=tokenizer).fields


@pytest.mark.parametrize("encoder_length", [4, 5, 17, 64, 114, 512])
@pytest.mark.parametrize(("noise_rate", "mean_span"), [(0.15, 3.0), (0.5, 8.0), (0.15, 32.0)])
def test_span_corruption_fills_the_encoder(encoder_length, noise_rate, mean_span):
    lengths = dict(encoder_length=encoder_length, length=999)
    chosen = choose(
        "span_corruption",
        "documents",
        noise_rate=noise_rate,
        mean_span=mean_span,
        **lengths,
    )

    def needed(text):
        noise, spans = span_counts(text, noise_rate, mean_span)
        return text - noise + spans + 1

    (sequence,) = chosen.sequences
    room = sequence.room
    assert needed(room) == encoder_length < needed(room + 1)


def test_t5s_own_lengths():
    """T5 v1.0: 512 tokens to the encoder are 568 of text, of which 114 go to the decoder."""
    lengths = dict(encoder_length=512, length=114)
    assert choose("span_corruption", "documents", **lengths).sequences[0].room == 568
    with pytest.raises(ConfigError, match="at least 114"):
        choose("span_corruption", "documents", encoder_length=512, length=113)


@pytest.mark.parametrize(
    ("objective", "kind", "next_sentence"),
    [
        ("causal_lm", "documents", False),
        ("prefix_lm", "documents", False),
        ("prefix_lm", "pairs", False),
        ("seq2seq", "pairs", False),
        ("masked_lm", "labelled", False),
        ("masked_lm", "documents", True),
        ("classify_text", "labelled", False),
    ],
)
def test_rows_as_long_as_allowed_fill_the_length_exactly(objective, kind, next_sentence):
    chosen = choose(objective, kind, next_sentence=next_sentence)
    row = {"label": 0, "other": {"sentences": [np.full(99, 65)] * 2}}
    for sequence in chosen.sequences:
        texts = fit([np.full(99, 65)] * len(sequence.fields), sequence.room)
        row |= dict(zip(sequence.fields, texts, strict=True))
    row["sentences"] = [np.full(99, 65)] * 2
    fields = chosen.fields(row, np.random.default_rng(0))
    for name in {"inputs", "targets", "encoder_inputs"} & set(fields):
        assert fields[name].shape == (64,)
