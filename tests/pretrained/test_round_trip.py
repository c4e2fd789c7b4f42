"""Import, export and import again give the same model, bit for bit; transformers reads the export.

Whole directories pass through convert.py, with a tokenizer made for the test.
"""

import importlib
import json
import re
import shutil
import struct

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import convert
import generate
from checkpointing import loaded_run
from configs.architectures import llama_style, vit_style
from experiment import sections
from experiment.schema import ConfigError
from pretrained.architecture import Head, Specials
from pretrained.published import describe
from tests.pretrained.batches import our_batch, parts_of, real
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import (
    EXAMPLES,
    VOCABULARY,
    answers,
    oracle,
    save,
)
from tests.tiny import tiny_config

WORDS = ["<pad>", "<s>", "</s>", "[MASK]", "[CLS]", "[SEP]", "[UNK]", "cat", "sat", "mat"]
WORDS += ["a", "on", "the", "dog", "ran"]
# Whose positions start after others.
WITH_OFFSET = ("roberta", "xlm_roberta", "camembert", "bart", "mbart", "mpnet", "esm")
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer of few words, all of them in the small models' vocabularies."""
    assert len(WORDS) <= VOCABULARY
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    vocab = {word: id for id, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(WORDS[:7])
    tokenizer.save(str(path))
    return str(path)


def is_text(name):
    return not name.startswith(("vit", "deit", "dinov2"))


def come_in(source, target, words, name):
    convert.convert(str(source), str(target), tokenizer=words if is_text(name) else "")


def named(params):
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(params)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_round_trip_keeps_everything(name, words, tmp_path):
    first, out, second = (tmp_path / f"{name}_{step}" for step in ("in", "out", "again"))
    come_in(FIXTURES / name, first, words, name)
    convert.convert(str(first), str(out))
    convert.convert(str(out), str(second))
    before, after = loaded_run.load(first), loaded_run.load(second)
    assert before.model_config == after.model_config, name
    assert before.experiment.task == after.experiment.task
    assert before.labels == after.labels
    if is_text(name):
        assert before.tokenizer.digest == after.tokenizer.digest
    ours, again = named(before.params), named(after.params)
    assert ours.keys() == again.keys()
    for path, value in ours.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, again[path], err_msg=f"{name} {path}")
    if name != "opt":  # goes out as a GPT-2, which computes the same
        same_tensors(FIXTURES / name, out, name)


def same_tensors(source, out, name):
    """The exported tensors equal the imported ones, except for unused position rows."""
    theirs, ours = load_file(source / WEIGHTS), load_file(out / WEIGHTS)
    if name.startswith("esm"):
        theirs, ours = (without_old_names(weights) for weights in (theirs, ours))
    prefix = f"{name.removesuffix('_base')}." if name.endswith("_base") else ""
    # DINOv2's pre-training alone reads it.
    theirs = {n: value for n, value in theirs.items() if not n.endswith("embeddings.mask_token")}
    assert ours.keys() == {prefix + each for each in theirs}
    for each, value in theirs.items():
        meaningless = 2 if name.startswith(WITH_OFFSET) else 0
        rows = slice(meaningless if "position" in each else 0, None)
        np.testing.assert_array_equal(ours[prefix + each][rows], value[rows], err_msg=each)
        if rows.start:
            assert not ours[prefix + each][: rows.start].any()


def without_old_names(weights):
    """ESM's weights as the hub names them, without the head for contacts, which is left out."""
    renamed = {
        re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): value
        for name, value in weights.items()
    }
    left_out = "contact_head", "rotary_embeddings"  # test_esm.py compares the latter
    return {n: value for n, value in renamed.items() if not any(each in n for each in left_out)}


def test_weights_of_sixteen_bits_are_read_exactly(words, tmp_path):
    import ml_dtypes
    from safetensors.numpy import save_file

    weights = load_file(FIXTURES / "gpt2" / WEIGHTS)
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float64):
        directory = tmp_path / np.dtype(dtype).name
        directory.mkdir()
        rounded = {name: value.astype(dtype) for name, value in weights.items()}
        save_file(rounded, directory / WEIGHTS, metadata={"format": "pt"})
        (directory / CONFIG).write_text((FIXTURES / "gpt2" / CONFIG).read_text())
        come_in(directory, tmp_path / f"{directory.name}_in", words, "gpt2")
        table = named(loaded_run.load(tmp_path / f"{directory.name}_in").params)
        embedding = table["['backbone']['token_embedding']['embedding']"]
        np.testing.assert_array_equal(
            embedding, rounded["transformer.wte.weight"].astype(np.float32)
        )


def test_parameters_can_be_imported_in_bfloat16(words, tmp_path):
    convert.convert(str(FIXTURES / "llama"), str(tmp_path / "in"), "bfloat16", words)
    model = loaded_run.load(tmp_path / "in")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(model.params)} == {"bfloat16"}
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert {x.dtype.name for x in load_file(tmp_path / "out" / WEIGHTS).values()} == {"bfloat16"}


def test_weights_in_several_files_are_the_same(words, tmp_path, monkeypatch):
    come_in(FIXTURES / "t5", tmp_path / "in", words, "t5")
    monkeypatch.setattr(convert.model_files.write_tensors, "__defaults__", (4000,))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    assert not (tmp_path / "out" / WEIGHTS).exists()
    come_in(tmp_path / "out", tmp_path / "again", "", "t5")
    first, second = (named(loaded_run.load(tmp_path / name).params) for name in ("in", "again"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[path], second[path]) for path in first)


def test_imported_models_generate(words, tmp_path):
    outputs = {}
    for name in ("t5", "bert_base", "bert_classifier", "roberta_masked_lm"):
        come_in(FIXTURES / name, tmp_path / name, words, name)
        options = dict(max_new_tokens=3) if name == "t5" else {}
        line = "cat [MASK]" if "masked" in name else "cat sat"
        outputs[name] = generate.generate(tmp_path / name, [line], **options)[0][0]
    assert outputs["bert_classifier"]["label"] in ("no", "perhaps", "yes")
    width = json.loads((FIXTURES / "bert_base" / CONFIG).read_text())["hidden_size"]
    assert len(outputs["bert_base"]["embedding"]) == width
    assert outputs["roberta_masked_lm"]["text"].startswith("cat")
    assert outputs["t5"]["tokens"] <= 3


def test_special_ids_are_the_models_own(words, tmp_path):
    come_in(FIXTURES / "bart", tmp_path / "bart", words, "bart")
    tokenizer = loaded_run.load(tmp_path / "bart").tokenizer
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 0, 1)
    assert tokenizer.text_start_ids == ()  # its config forces none
    come_in(forcing_bart(tmp_path / "forced"), tmp_path / "forcing", words, "bart")
    assert loaded_run.load(tmp_path / "forcing").tokenizer.text_start_ids == (0,)
    come_in(FIXTURES / "llama", tmp_path / "llama", words, "llama")
    tokenizer = loaded_run.load(tmp_path / "llama").tokenizer
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.text_start_ids == ()


def forcing_bart(directory):
    """A BART that forces <s> at the start of every answer, as published ones do."""
    shutil.copytree(FIXTURES / "bart", directory)
    config = json.loads((directory / CONFIG).read_text()) | dict(forced_bos_token_id=0)
    (directory / CONFIG).write_text(json.dumps(config))
    return directory


def test_a_beam_of_bart_has_room_for_its_start(words, tmp_path):
    come_in(forcing_bart(tmp_path / "forced"), tmp_path / "bart", words, "bart")
    length = loaded_run.load(tmp_path / "bart").experiment.data.length
    ((answer,),) = generate.generate(tmp_path / "bart", ["cat"], method="beam", beam_size=2)
    assert 0 < answer["tokens"] < length  # one place is the start's


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path):
    shutil.copytree(FIXTURES / "marian", tmp_path / "marian")
    for name in ("source.spm", "target.spm"):
        (tmp_path / "marian" / name).write_text("{}")
    with pytest.raises(ConfigError, match=r"source\.spm, target\.spm cannot be read; give one"):
        convert.convert(str(tmp_path / "marian"), str(tmp_path / "in"))
    with pytest.raises(ConfigError, match=r"x\.json' is no file"):
        convert.convert(str(tmp_path / "marian"), str(tmp_path / "in"), tokenizer="x.json")
    assert not (tmp_path / "in").exists()


def test_a_rope_scaling_that_transformers_lacks_is_not_exported():
    style = {**llama_style(), "rope_scaling": "ntk", "rope_factor": 2.0}
    with pytest.raises(
        ConfigError, match=r"llama \(model\.rope_scaling=ntk is not one of: default,"
    ):
        describe(tiny_config(**style), Head("causal_lm"), (), Specials())
    described = describe(tiny_config(**llama_style()), Head("causal_lm"), (), Specials())
    assert described.config["rope_scaling"] is None


def test_a_refusal_begins_with_the_closest_architecture():
    style = {**vit_style(), "pooling": "mean", "class_token": False}
    sizes = dict(image_size=8, image_channels=1, patch_size=2)
    with pytest.raises(ConfigError) as refusal:
        describe(tiny_config(**style, **sizes), Head("classify_images"), (), Specials())
    assert (
        "the closest is vit (needs model.class_token=True, not False; needs model.pooling=first, "
        "not mean); train a model with these keys to export it; the others are no closer: "
    ) in str(refusal.value)
    with pytest.raises(ConfigError, match=r"closest is llama \(needs model\.norm=rmsnorm, not l"):
        style = {**llama_style(), "norm": "layernorm"}
        describe(tiny_config(**style), Head("causal_lm"), (), Specials())


# As in docs/published.md: the class and style that each of our configs is exported as.
EXPORTS = [
    ("c4", "", "LlamaForCausalLM"),
    ("lm1b", "", "GPT2LMHeadModel"),
    ("sst2", "", "BertForSequenceClassification"),
    ("wikipedia_bert", "", "BertForPreTraining"),
    ("text_to_text", "", "T5ForConditionalGeneration"),
    ("pydoc", "", "GPTNeoXForCausalLM"),
    ("text_lm", "", "FalconForCausalLM"),
    ("pydoc", "gpt2_style", "GPT2LMHeadModel"),
    ("shakespeare", "llama_style", "LlamaForCausalLM"),
    ("classify_text", "", "bert_style"),
    ("classify_text", "bert_style", "BertForSequenceClassification"),
    ("imdb", "", "bert_style"),
    ("langid_mlm", "bert_style", "BertForMaskedLM"),
    ("wmt14_ende", "", "transformer_style --config.model.output_bias=True"),
    ("dates", "t5_style", "T5ForConditionalGeneration"),
]


@pytest.mark.parametrize(("name", "style", "expected"), EXPORTS)
def test_our_configs_are_exported_as_the_docs_say(name, style, expected):
    config = importlib.import_module(f"configs.{name}").get_config(style or None)
    experiment = sections.from_mapping(config.to_dict())
    model = experiment.model.resolve(vocab_size=64, num_classes=2)
    head, ids = convert._head(experiment.task), Specials(0, 1, 2, decoder_start=1)
    if "style" not in expected:
        assert describe(model, head, (), ids).config["architectures"] == [expected]
        return
    with pytest.raises(ConfigError, match=r"the closest is .*needs model") as refusal:
        describe(model, head, (), ids)
    assert f"train.py --config=CONFIG.py:{expected} builds such a model" in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "style", "expected"),
    [
        ("dates", "", "PegasusForConditionalGeneration"),
        ("dates", "transformer_style", "MarianMTModel"),
        ("wmt14_ende", "", "MarianMTModel"),
    ],
)
def test_translation_models_with_an_output_bias_are_exported(name, style, expected):
    config = importlib.import_module(f"configs.{name}").get_config(style or None)
    config.model.output_bias = True
    experiment = sections.from_mapping(config.to_dict())
    head, ids = convert._head(experiment.task), Specials(0, 1, 2, decoder_start=1)
    found = describe(experiment.model.resolve(vocab_size=64), head, (), ids)
    assert found.config["architectures"] == [expected]


def with_more_positions(name, workdir):
    """A published ViT with a table of positions that is longer than an image, as in our configs."""
    convert.convert(str(FIXTURES / name), str(workdir))
    run = loaded_run.load(workdir)
    table = run.params["backbone"]["encoder"]["position_embedding"]
    more = np.ones((512 - len(table["embedding"]), run.model_config.width), np.float32)
    table["embedding"] = np.concatenate([table["embedding"], more])
    for file in ("config.json", "model.json"):
        record = json.loads((workdir / file).read_text())
        record["model"]["max_length"] = 512
        (workdir / file).write_text(json.dumps(record))
    shutil.rmtree(workdir / "checkpoints")
    convert.save_params(run.params, workdir, run.experiment.checkpoint)


def test_unused_image_positions_are_not_exported(tmp_path):
    with_more_positions("vit_classifier", tmp_path / "run")
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    theirs, out = (
        load_file(each / WEIGHTS) for each in (FIXTURES / "vit_classifier", tmp_path / "out")
    )
    assert theirs.keys() == out.keys()
    for weights, value in theirs.items():
        np.testing.assert_array_equal(value, out[weights], err_msg=weights)
    convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
    assert loaded_run.load(tmp_path / "again").model_config.max_length < 512


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_transformers_reads_a_vit_with_more_positions(tmp_path):
    torch, hf = oracle()
    with_more_positions("vit_classifier", tmp_path / "run")
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    model, info = hf.ViTForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    run = loaded_run.load(tmp_path / "run")
    batch = our_batch(load_file(FIXTURES / "vit_classifier" / "expected.safetensors"))
    with torch.no_grad():
        theirs = model.eval()(torch.tensor(batch["images"].transpose(0, 3, 1, 2))).logits
    outputs = run.model.apply({"params": run.params}, batch["images"])
    ours = outputs[0] if isinstance(outputs, tuple) else outputs
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def sentencepiece_of(pieces):
    """A unigram model by hand: fields 1 are pieces, each with text (1), score (2) and kind (3)."""
    model = b"\x12\x02\x18\x01"  # field 2, the trainer's, of 2 bytes: its model type, unigram
    for text, score, kind in pieces:
        name = text.encode()
        piece = bytes([0x0A, len(name)]) + name
        piece += b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])
        model += bytes([0x0A, len(piece)]) + piece
    return model


def test_marians_own_files_are_enough(tmp_path):
    shutil.copytree(FIXTURES / "marian", tmp_path / "marian")
    config = tmp_path / "marian" / CONFIG
    ids = dict(eos_token_id=0, pad_token_id=6, decoder_start_token_id=6)
    config.write_text(json.dumps(json.loads(config.read_text()) | ids))
    english = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)]
    english += [("▁cat", -1, 1), ("▁", -2, 1), ("sat", -3, 1)]
    (tmp_path / "marian" / "source.spm").write_bytes(sentencepiece_of(english))
    vocab = ["</s>", "<unk>", "▁", "▁Katze", "▁cat", "sat", "<pad>"]
    vocab = {piece: id for id, piece in enumerate(vocab)}
    (tmp_path / "marian" / "vocab.json").write_text(json.dumps(vocab))

    convert.convert(str(tmp_path / "marian"), str(tmp_path / "in"))
    tokenizer = loaded_run.load(tmp_path / "in").tokenizer
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (6, 6, 0)
    assert tokenizer.encode("cat sat").tolist() == [4, 2, 5]
    assert tokenizer.decode([3, 4, 0]) == "Katze cat"
    answer = generate.generate(tmp_path / "in", ["cat sat"], max_new_tokens=3)[0][0]
    assert answer["tokens"] <= 3


def test_images_are_prepared_as_for_the_model(tmp_path):
    shutil.copytree(FIXTURES / "vit_classifier", tmp_path / "vit")
    settings = dict(do_rescale=True, do_normalize=True, image_mean=[0.4], image_std=[0.2])
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    convert.convert(str(tmp_path / "vit"), str(tmp_path / "in"))
    data = loaded_run.load(tmp_path / "in").experiment.data
    assert (data.image_mean, data.image_std) == ((0.4,), (0.2,))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    channels = json.loads((FIXTURES / "vit_classifier" / CONFIG).read_text())["num_channels"]
    assert written["image_mean"] == [0.4] * channels and written["image_std"] == [0.2] * channels
    settings["rescale_factor"] = 1.0
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"rescale_factor=1\.0 is not supported"):
        convert.convert(str(tmp_path / "vit"), str(tmp_path / "other"))


@pytest.mark.parametrize(("mode", "embedding"), [("mean_tokens", "mean"), ("cls_token", "first")])
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_of_sentence_transformers(mode, embedding, normalize, words, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "bert_base", source)
    (source / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{each}": each == mode for each in ("mean_tokens", "cls_token")}
    (source / "1_Pooling" / CONFIG).write_text(json.dumps(modes))
    kinds = ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2]
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": "1_Pooling" * (kind == "Pooling")}
        for kind in kinds
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    come_in(source, tmp_path / "in", words, "bert_base")
    task = loaded_run.load(tmp_path / "in").experiment.task
    assert (task.embedding, task.normalize) == (embedding, normalize)
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    come_in(tmp_path / "out", tmp_path / "again", "", "bert_base")
    assert loaded_run.load(tmp_path / "again").experiment.task == task

    for pooling, refusal in (
        (
            {"pooling_mode_max_tokens": True},
            "pooling_mode_max_tokens is not .*: pooling_mode_mean_",
        ),
        ({"pooling_mode": "max"}, "pooling_mode=max is not supported; .*: mean, cls"),
        ({"pooling_mode": ["mean", "cls"]}, r"pooling_mode=mean\+cls is not supported; .*alone"),
    ):
        (source / "1_Pooling" / CONFIG).write_text(json.dumps(pooling))
        with pytest.raises(ConfigError, match=refusal):
            come_in(source, tmp_path / "other", words, "bert_base")
    modules[1]["path"] = "../elsewhere"
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="leads out of the directory"):
        come_in(source, tmp_path / "other", words, "bert_base")


def test_a_directory_that_is_there_is_left_alone(words, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        come_in(FIXTURES / "gpt2", tmp_path / "there", words, "gpt2")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_transformers_reads_what_goes_out(name, words, tmp_path):
    torch, hf = oracle()
    save(name, 3, tmp_path / "theirs")
    come_in(tmp_path / "theirs", tmp_path / "in", words, name)
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    kind = getattr(hf, config["architectures"][0])
    model, info = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    missing = {each for each in info["missing_keys"] if "contact_head" not in each}  # of ESM
    assert not missing and not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    stored = load_file(tmp_path / "theirs" / "expected.safetensors")
    inputs, batch = parts_of(stored, "input/"), our_batch(stored)
    with torch.no_grad():
        found = answers(model.double().eval(), inputs, EXAMPLES[name].outputs)
    for output, theirs in parts_of(stored, "output/").items():
        # The same numbers through the same code: only float32's rounding of the record remains.
        value, theirs = real(batch, output, found[output].numpy()), real(batch, output, theirs)
        np.testing.assert_allclose(value, theirs, rtol=0, atol=1e-6)
    if is_text(name):
        tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
        assert tokenizer.convert_tokens_to_ids(["cat", "mat"]) == [7, 9]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_bart_writes_what_transformers_writes(words, tmp_path):
    torch, hf = oracle()
    torch.manual_seed(2)
    ids = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)
    sizes = dict(encoder_layers=1, decoder_layers=1, d_model=16, init_std=0.7)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2)
    heads |= dict(encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32)
    config = hf.BartConfig(vocab_size=len(WORDS), **ids, **sizes, **heads)
    config.forced_eos_token_id = None
    model = hf.BartForConditionalGeneration(config).eval()
    model.generation_config.forced_bos_token_id = 1
    model.save_pretrained(tmp_path / "theirs")
    tokenizer = Tokenizer.from_file(words)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    again = hf.BartForConditionalGeneration.from_pretrained(tmp_path / "out").eval()

    def theirs(model, line, **options):
        source = torch.tensor([tokenizer.encode(line).ids])
        options |= dict(do_sample=False, num_beams=1, max_new_tokens=9, forced_eos_token_id=None)
        return model.generate(source, **options)[0].tolist()

    lines = ["cat sat", "the dog ran on a mat", "a", "mat on mat on mat", "dog the cat"]
    written, unforced = set(), 0
    found = generate.generate(tmp_path / "in", lines, max_new_tokens=9)
    for line, (answer,) in zip(lines, found, strict=True):
        expected = theirs(model, line)
        assert expected[:2] == [2, 1]
        expected = expected[2:]
        expected_words = [WORDS[id] for id in expected if id >= 7]
        assert answer["text"].split() == expected_words and answer["tokens"] == len(expected), line
        assert theirs(again, line)[2:] == expected  # what goes out forces it by itself
        written.add(tuple(expected))
        unforced += theirs(model, line, forced_bos_token_id=None)[2:] != expected
    assert len(written) > 2 and unforced
