"""Prompts begin as training rows do, and a row does not depend on its batch."""

import numpy as np
import pytest
from PIL import Image
from tokenizers import AddedToken, Tokenizer

from configs.default import get_config
from experiment.schema import ConfigError
from inference.prompts import ImagePrompts, TextPrompts, bucket, in_batches
from input_pipeline.config import DataConfig
from input_pipeline.objectives.causal_lm import causal_lm
from input_pipeline.objectives.classify_text import classify_text
from input_pipeline.objectives.fill_in_middle import fill_in_middle
from input_pipeline.objectives.prefix_lm import prefix_lm, prefix_lm_pair
from input_pipeline.objectives.seq2seq import seq2seq
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import FIXTURES

T = ByteTokenizer()
BOS, EOS, MASK, CLS, SEP = 1, 2, 3, 4, 5
A, B, C = T.encode("abc").tolist()
SENTINELS = T.sentinel_ids.tolist()


def prompts(objective, kind="documents", tokenizer=T, **options):
    return TextPrompts(objective, kind, tokenizer, **options)


def check(fields, **expected):
    assert {name: values.tolist() for name, values in fields.items()} == expected


def refusal(make, text):
    with pytest.raises(ConfigError) as refused:
        make(text, "line 7")
    (line,) = str(refused.value).splitlines()
    return line


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("text", ["", "a", "aé c"])
def test_running_text_begins_as_in_training(text):
    row = {"text": T.encode(text + " and on")}
    fields = prompts("causal_lm")(text, "")
    trained = causal_lm(row, rng(), tokenizer=T)
    np.testing.assert_array_equal(trained["inputs"][: len(fields["inputs"])], fields["inputs"])
    assert trained["targets"][len(fields["inputs"]) - 1] == T.encode(" ")[0]


def test_a_prefix_is_what_training_reads_both_ways():
    row = {"text": T.encode("abcabcabc")}
    trained = prefix_lm(row, rng(), tokenizer=T)
    given = int(trained["prefix"].sum())
    text = T.decode(trained["inputs"][:given])
    check(prompts("prefix_lm")(text, ""), inputs=trained["inputs"][:given].tolist())


def test_a_pair_is_asked_for_what_training_predicts():
    row = {"source": T.encode("ab"), "target": T.encode("c")}
    trained = prefix_lm_pair(row, rng(), tokenizer=T)
    given = int(trained["prefix"].sum())
    check(prompts("prefix_lm", "pairs")("ab", ""), inputs=trained["inputs"][:given].tolist())
    trained = seq2seq(row, rng(), tokenizer=T)
    check(
        prompts("seq2seq", "pairs")("ab", ""),
        encoder_inputs=trained["encoder_inputs"].tolist(),
        inputs=trained["inputs"][:1].tolist(),
    )
    check(
        prompts("seq2seq", "pairs", begin_with="c")("ab", ""),
        encoder_inputs=trained["encoder_inputs"].tolist(),
        inputs=trained["inputs"].tolist(),
    )


def test_bart_is_asked_with_its_start_on_both_sides():
    tokenizer = ByteTokenizer()
    tokenizer.text_start_ids = (CLS,)
    asked = prompts("seq2seq", "pairs", tokenizer, begin_with="c")("ab", "")
    check(asked, encoder_inputs=[CLS, A, B, EOS], inputs=[BOS, CLS, C])
    asked = prompts("span_corruption", "documents", tokenizer)("a[MASK]", "")
    check(asked, encoder_inputs=[CLS, A, SENTINELS[0], EOS], inputs=[BOS, CLS])
    check(prompts("causal_lm", "documents", tokenizer)("ab", ""), inputs=[BOS, A, B])


def test_texts_to_classify_equal_training_rows():
    row = {"text": T.encode("ab"), "text_pair": T.encode("c"), "label": 0}
    both = prompts("classify_text", "labelled", takes_two=True)
    for text, trained in [("ab", {"text": row["text"], "label": 0}), ("ab\tc", row)]:
        expected = classify_text(trained, rng(), tokenizer=T, noise_rate=0.1)
        fields = both(text, "")
        assert expected.keys() - fields.keys() == {"labels", "weights"}
        for name, values in fields.items():
            np.testing.assert_array_equal(values, expected[name])
    tab = T.encode("\t")[0]
    check(prompts("classify_text", "labelled")("a\tb", ""), inputs=[CLS, A, tab, B, SEP])
    assert refusal(both, "a\tb\tc") == (
        "line 7 has 3 columns; give one text, or two with a tab between them"
    )


def test_gaps_by_hand():
    check(prompts("masked_lm")("a[MASK]c", ""), inputs=[CLS, A, MASK, C, SEP])
    first, second, third = SENTINELS[:3]
    spans = prompts("span_corruption")
    asked = dict(encoder_inputs=[first, A, second, EOS], inputs=[BOS])
    check(spans("<extra_id_0>a<extra_id_1>", ""), **asked)
    check(spans("[MASK]a[MASK]", ""), **asked)
    check(spans("a<extra_id_2>", ""), encoder_inputs=[A, third, EOS], inputs=[BOS])
    begun = prompts("span_corruption", begin_with="<extra_id_0>b")
    check(begun("a[MASK]", ""), encoder_inputs=[A, first, EOS], inputs=[BOS, first, B])


@pytest.mark.parametrize("name", ["bert_cased/vocab.txt", "t5/spiece.model"])
def test_published_vocabularies_read_their_own_gaps_alike(name):
    tokenizer = open_tokenizer(FIXTURES / name)
    if tokenizer.sentinel_count:
        text = "the <extra_id_0> was <extra_id_1>"
        ids = prompts("span_corruption", tokenizer=tokenizer)(text, "")["encoder_inputs"]
        marks = tokenizer.sentinel_ids[:2].tolist()
    else:
        text = "the [MASK] was [MASK]"
        ids = prompts("masked_lm", tokenizer=tokenizer)(text, "")["inputs"][1:]
        marks = [tokenizer.mask_id]
    np.testing.assert_array_equal(ids[:-1], tokenizer.encode(text))
    assert set(marks) <= set(ids.tolist())


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_gap_stands_for_a_token_with_its_space(kind):
    tokenizer = train_tokenizer(kind, ["one cat sat on one mat with one cat"] * 20, 400)
    ids = tokenizer.encode("one cat sat")
    assert len(ids) == 3
    hidden = [tokenizer.cls_id, ids[0], tokenizer.mask_id, ids[2], tokenizer.sep_id]
    make = prompts("masked_lm", tokenizer=tokenizer)
    check(make("one [MASK] sat", ""), inputs=hidden)
    check(make(f"one {tokenizer.mask_name} sat", ""), inputs=hidden)


@pytest.mark.parametrize("lstrip", [True, False])
def test_a_published_mask_takes_in_the_space_if_its_file_says_so(lstrip):
    trained = train_tokenizer("bpe", ["one cat sat on one mat with one cat"] * 20, 400)
    library = Tokenizer.from_str(trained.content)
    mask = AddedToken(trained.mask_name, special=True, normalized=False, lstrip=lstrip)
    library.add_special_tokens([mask])
    tokenizer = trained.as_published(library.to_str())
    make = prompts("masked_lm", tokenizer=tokenizer)
    (one, sat), (space,) = trained.encode("one sat").tolist(), trained.encode(" ").tolist()
    for name in ("[MASK]", tokenizer.mask_name):
        beside = [] if lstrip else [space]
        check(make(f"one {name} sat", ""), inputs=[one, *beside, tokenizer.mask_id, sat])
        check(make(f"one{name} sat", ""), inputs=[one, tokenizer.mask_id, sat])


@pytest.mark.parametrize("suffix_first", [False, True])
def test_a_prompt_with_a_suffix_is_what_training_reads_before_the_middle(suffix_first):
    row, given = {"text": T.encode("aé and on"), "is_training": True}, "aé"
    make = prompts("fill_in_middle", suffix="on", suffix_first=suffix_first)
    options = dict(tokenizer=T, rate=1.0, spm_rate=float(suffix_first))
    tried = (fill_in_middle(row, np.random.default_rng(n), **options) for n in range(200))
    asked = make(given, "")["inputs"]
    assert any(row["inputs"][: len(asked)].tolist() == asked.tolist() for row in tried)
    gap = prompts("fill_in_middle", suffix_first=suffix_first)
    check(gap(f"{given}[MASK]on", ""), inputs=asked.tolist())
    pre, suf, mid = SENTINELS[:3]
    end = [pre, suf, mid, A] if suffix_first else [pre, A, suf, mid]
    check(gap("a[MASK]", ""), inputs=[BOS, *end])
    check(gap("a", ""), inputs=[BOS, A])


def test_only_one_gap_is_filled_in():
    asked = refusal(prompts("fill_in_middle", suffix="x"), "a[MASK]b")
    assert asked == (
        "line 7 has 2 gaps, counting --suffix, and this model fills one; leave one [MASK], or "
        "--suffix"
    )
    ids = IdTokenizer({"bos": BOS, "eos": EOS}, T.vocab_size)
    check(prompts("fill_in_middle", tokenizer=ids)("7 8", ""), inputs=[7, 8])


def test_prompts_without_gaps_or_with_unknown_ones_are_refused():
    spans = prompts("span_corruption")
    no_gap = "line 7 has no gap to fill in; put {} where a gap is"
    assert refusal(prompts("masked_lm"), "abc") == no_gap.format("[MASK]")
    assert refusal(spans, "abc") == no_gap.format("<extra_id_0>")
    assert "<extra_id_100> is unknown to the model's tokenizer" in refusal(spans, "<extra_id_100>")
    assert "the last that it knows is <extra_id_99>" in refusal(spans, "<extra_id_100>")
    assert "two gaps with the same number" in refusal(spans, "<extra_id_1>a[MASK]b<extra_id_1>")


def test_unspellable_text_becomes_the_unknown_token():
    tokenizer = train_tokenizer("wordpiece", ["abc cab"] * 3, 200)
    make = prompts("causal_lm", tokenizer=tokenizer)
    unknown = tokenizer.encode("ж").tolist()
    inputs = make("abc cжb", "line 7")["inputs"]
    assert inputs.tolist() == [BOS, *tokenizer.encode("abc"), *unknown]
    make("abc", "line 8")
    assert make.unknown == {"line 7": "ж"}


def test_strict_prompts_refuse_unspellable_text():
    tokenizer = train_tokenizer("wordpiece", ["abc cab"] * 3, 200)
    line = refusal(prompts("causal_lm", tokenizer=tokenizer, strict=True), "abc cжb")
    assert line.startswith("line 7: the vocabulary of the model's tokenizer cannot spell 'ж'; ")
    with pytest.raises(ConfigError, match=r"^--prefix: the vocabulary .* cannot spell 'ж'"):
        prompts("seq2seq", "pairs", tokenizer, begin_with="ж", strict=True)


def test_ids_are_passed_to_the_model_unchanged():
    ids = IdTokenizer.like(T, T.vocab_size)
    check(prompts("causal_lm", tokenizer=ids)("7 9 007", ""), inputs=[7, 9, 7])
    source = prompts("seq2seq", "pairs", ids)("7 2", "")
    check(source, encoder_inputs=[7, 2], inputs=[BOS])
    pair = prompts("classify_text", "labelled", ids, takes_two=True)("4 7\t8 5", "")
    check(pair, inputs=[4, 7, 8, 5], token_types=[0, 0, 1, 1])
    check(prompts("masked_lm", tokenizer=ids)("4 3 5", ""), inputs=[4, 3, 5])
    assert ids.decode([7, 0, 9, EOS, 0]) == "7 0 9"
    assert IdTokenizer({}, 23).decode([5, 0, 7, 0]) == "5 0 7 0", "nothing ends its texts"
    several = IdTokenizer(dict(eos=2), 23, more_eos_ids=[4])
    assert several.decode([5, 4, 6, 2]) == "5"
    for wrong in ("7 x", "-1", "7.0", "²", str(T.vocab_size), "9" * 30):
        line = refusal(prompts("causal_lm", tokenizer=ids), wrong)
        assert line.startswith("line 7: '") and f"0 to {T.vocab_size - 1}" in line
    assert "line 7 is empty" in refusal(prompts("causal_lm", tokenizer=ids), " ")


def test_texts_to_embed_are_cut_as_by_the_published_pipeline():
    make = prompts("embed", longest=4, takes_two=True)
    check(make("abc", ""), inputs=[CLS, A, B, SEP])
    check(make("a", ""), inputs=[CLS, A, SEP])
    check(prompts("embed")("abcabc", ""), inputs=[CLS, A, B, C, A, B, C, SEP])
    make = prompts("classify_text", "labelled", longest=4)
    assert len(make("abcabc", "")["inputs"]) == 8  # a classifier's rows are not cut here


@pytest.mark.parametrize("channels", [1, 3])
def test_image_prompts_equal_training_images(tmp_path, channels):
    shape = (8, 8) if channels == 1 else (8, 8, 3)
    pixels = rng().integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels.repeat(2, axis=0).repeat(2, axis=1)).save(tmp_path / "large.png")
    section = get_config().data.to_dict() | dict(image_mean=(0.5,), image_std=(0.25,))
    make = ImagePrompts(8, channels, DataConfig(**section))
    expected = (pixels.reshape(8, 8, channels).astype(np.float32) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(make(str(tmp_path / "a.png"), "")["images"], expected, rtol=1e-6)
    assert make(str(tmp_path / "large.png"), "")["images"].shape == (8, 8, channels)
    assert refusal(make, "nowhere.png").startswith("line 7: 'nowhere.png' is no file; ")
    (tmp_path / "text.png").write_text("no image")
    assert "text.png is not a PNG or JPEG image" in refusal(make, str(tmp_path / "text.png"))


def test_buckets_are_few_and_hold_what_they_must():
    sizes = [bucket(length) for length in range(1, 1025)]
    assert all(size >= length for length, size in enumerate(sizes, start=1))
    assert sorted(set(sizes)) == [16, 32, 64, 128, 256, 512, 1024]
    assert [bucket(length, longest=40) for length in (1, 17, 33, 40)] == [16, 32, 40, 40]
    assert bucket(3, longest=7) == 7


@pytest.mark.parametrize("objective", ["causal_lm", "seq2seq", "classify_text"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_every_row_is_in_one_batch_as_it_would_be_alone(objective, size):
    lengths = [3, 70, 14, 15, 16, 0, 31, 40, 5, 33, 64]
    # Some are pairs, where a tab says so.
    texts = ["x" * n + ("\ty" if n % 2 else "") for n in lengths]
    make = prompts(objective, takes_two=True)
    rows = [make(text, "") for text in texts]
    found = []
    for numbers, batch in in_batches(rows, size):
        found += numbers
        assert {len(array) for array in batch.values()} == {size}
        for place, number in enumerate(numbers):
            ((_, alone),) = in_batches([rows[number]], 1)
            assert alone.keys() == batch.keys()
            for name, array in batch.items():
                np.testing.assert_array_equal(array[place], alone[name][0], err_msg=name)
                if name in rows[number]:
                    length = len(rows[number][name])
                    np.testing.assert_array_equal(array[place][:length], rows[number][name])
                    assert not array[place][length:].any()
    assert sorted(found) == list(range(len(rows)))
    assert list(in_batches([], size)) == []


@pytest.mark.parametrize("text", ["ab", "", "a\tbc"])
def test_without_needs_mask_a_masked_lm_reads_texts_as_a_classifier_does(text):
    unmasked = prompts("masked_lm", takes_two=True, needs_mask=False)(text, "")
    expected = prompts("classify_text", takes_two=True)(text, "")
    check(unmasked, **{name: values.tolist() for name, values in expected.items()})
