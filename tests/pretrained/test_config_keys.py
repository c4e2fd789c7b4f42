"""Keys of published configs: unknown keys that may change the result are refused by name.

Configs of well-known models of the hub are accepted unchanged. Only their keys and switches are
recorded here; sizes are those of the small models of fixtures/.
"""

import json

import numpy as np
import pytest

import convert
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained import known_keys, published
from pretrained.catalog import ARCHITECTURES
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_round_trip import words  # noqa: F401
from tests.pretrained.transformers_models import EXAMPLES, Draw, answers, oracle, randomize

CONFIG = "config.json"


def refusal(directory, *ignored):
    with pytest.raises(ConfigError) as refused:
        published.read(directory, ignored)
    return str(refused.value)


GRANITE = dict(
    embedding_multiplier=12.0, attention_multiplier=0.015625, residual_multiplier=0.22,
    logits_scaling=8.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", dict(sliding_window=4096)),
        ("llama", GRANITE),
        ("llama", dict(attention_multiplier=1.0)),  # replaces the scale of the scores
        ("llama", dict(layer_types=["sliding_attention"] * 2)),
        ("llama", dict(logits_scaling=True)),
        ("llama", dict(final_logit_softcapping=30.0)),
        ("llama", dict(partial_rotary_factor=0.5)),
        ("llama", dict(is_causal=False)),  # transformers 5 then looks both ways
        ("gpt2", dict(foo_multiplier=2.0)),
        ("gpt2", dict(foo_multiplier=None)),
        ("bert_base", dict(embedding_size=128)),
        ("bert_base", dict(pruned_heads={"0": [1]})),
        ("distilbert_masked_lm", dict(is_decoder=True)),
        ("vit_base", dict(layerscale_value=0.1)),
        ("marian", dict(add_bias_logits=True)),
        ("bart", dict(extra_pos_embeddings=0)),
        ("bart", dict(tie_encoder_decoder=True)),
    ],
)
def test_keys_that_may_change_the_result_are_refused_by_name(name, keys, changed):
    directory = changed(name, foo_note="x", **keys)
    line = refusal(directory)
    every = sorted([*keys, "foo_note"])
    for key, value in keys.items():
        assert f"{key}={value!r}"[:40] in line
    assert line.endswith(f"--ignore_keys={','.join(every)}") and len(line.splitlines()) == 1
    assert published.read(directory, every).model == published.read(FIXTURES / name).model
    # What is named must be all of it.
    assert f"--ignore_keys={every[0]}" in refusal(directory, *every[1:])


def test_values_and_unknown_keys_are_refused_at_once(changed):
    directory = changed("llama", attention_bias=True, mlp_bias=True, sliding_window=9)
    lines = refusal(directory).splitlines()
    assert len(lines) == 2
    keys = ("mlp_bias=True", "sliding_window=9")
    assert all(key in line for key, line in zip(keys, lines, strict=True))


def test_a_message_stays_short_and_names_the_keys(changed):
    directory = changed("gpt2", **{f"key_{n:03}": "x" * 1000 for n in range(200)})
    line = refusal(directory)
    assert "key_000=" in line and "and 160 more" in line and len(line) < 5000


def test_a_key_to_ignore_must_be_there(changed):
    directory = changed("llama", sliding_window=4096)
    line = refusal(directory, "slidin_window")
    assert "--ignore_keys names slidin_window, which" in line and "'sliding_window'?" in line
    assert "hidden_size" in refusal(directory, "sliding_window", "hidden_size")


def test_a_known_model_with_auto_map_is_imported_without_its_code(changed):
    directory = changed("llama", auto_map={"AutoModel": "modeling_x.Y"})
    assert "never run" in refusal(directory) and "--ignore_keys=auto_map" in refusal(directory)
    assert published.read(directory, ["auto_map"]).model == published.read(FIXTURES / "llama").model


def test_ignore_keys_imports_the_model_without_these_keys(changed, words, tmp_path):  # noqa: F811
    source, target = changed("llama", sliding_window=4096), str(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"sliding_window=4096 is not known for model_type=llama"):
        convert.convert(str(source), target, tokenizer=words)
    convert.convert(str(source), target, tokenizer=words, ignore_keys=["sliding_window"])
    plain = str(tmp_path / "plain")
    convert.convert(str(FIXTURES / "llama"), plain, tokenizer=words)
    assert loaded_run.load(target).model_config == loaded_run.load(plain).model_config
    with pytest.raises(ConfigError, match="--ignore_keys is for imports, and this is a run"):
        convert.convert(target, str(tmp_path / "out"), ignore_keys=["sliding_window"])


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", dict(sliding_window=None, use_sliding_window=False, logits_scaling=1)),
        ("llama", dict(embedding_multiplier=1.0, residual_multiplier=1, pretraining_tp=2)),
        ("llama", dict(rope_interleaved=False, partial_rotary_factor=1.0)),
        ("bert_base", dict(pruned_heads={}, chunk_size_feed_forward=2)),
        ("gpt2", dict(is_decoder=True, reorder_and_upcast_attn=True)),
        ("llama", dict(is_causal=True)),
        ("bart", dict(num_hidden_layers=7, is_decoder=True, is_encoder_decoder=False)),
        ("t5", dict(is_decoder=True)),
    ],
)
def test_keys_that_change_nothing_are_accepted(name, keys, changed):
    assert published.read(changed(name, **keys)).model == published.read(FIXTURES / name).model


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_both_names_of_the_number_of_experts_are_accepted(name, changed):
    """Files of transformers 4 have the one, those of 5 the other."""
    number = json.loads((FIXTURES / name / CONFIG).read_text())["num_local_experts"]
    for key in ("num_experts", "num_local_experts"):
        other = dict(num_experts=None, num_local_experts=None) | {key: number}
        assert published.read(changed(name, **other)).model["experts"] == number


def test_other_names_of_a_key_are_accepted(changed):
    """transformers reads hidden_size as n_embd, and so on, and lets it win."""
    sizes = json.loads((FIXTURES / "gpt2" / CONFIG).read_text())
    directory = changed("gpt2", hidden_size=sizes["n_embd"], n_embd=None)
    assert published.read(directory).model == published.read(FIXTURES / "gpt2").model
    directory = changed("gpt2", num_attention_heads=1)
    line = refusal(directory)
    assert f"num_attention_heads=1 and n_head={sizes['n_head']} are two names" in line
    assert published.read(directory, ["num_attention_heads"]).model["heads"] == sizes["n_head"]


# As transformers 4 wrote any config with all its keys.
OLD_GENERIC = dict(
    return_dict=True, output_hidden_states=False, output_attentions=False, torchscript=False,
    torch_dtype="float32", use_bfloat16=False, tf_legacy_loss=False, pruned_heads={},
    chunk_size_feed_forward=0, cross_attention_hidden_size=None, add_cross_attention=False,
    tie_encoder_decoder=False, max_length=20, min_length=0, do_sample=False, early_stopping=False,
    num_beams=1, num_beam_groups=1, diversity_penalty=0.0, temperature=1.0, top_k=50, top_p=1.0,
    typical_p=1.0, repetition_penalty=1.0, length_penalty=1.0, no_repeat_ngram_size=0,
    encoder_no_repeat_ngram_size=0, bad_words_ids=None, num_return_sequences=1,
    output_scores=False, return_dict_in_generate=False, forced_bos_token_id=None,
    forced_eos_token_id=None, remove_invalid_values=False, exponential_decay_length_penalty=None,
    suppress_tokens=None, begin_suppress_tokens=None, finetuning_task=None, tokenizer_class=None,
    prefix=None, sep_token_id=None, decoder_start_token_id=None, task_specific_params=None,
    problem_type=None, _name_or_path="", transformers_version="4.30.0", is_decoder=False,
    _attn_implementation_autoset=True, tie_word_embeddings=True, is_encoder_decoder=False,
)  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_generic_key_of_transformers_4_is_known(name, changed):
    config = json.loads((FIXTURES / name / CONFIG).read_text())
    assert published.read(changed(name, **{**OLD_GENERIC, **config}))


LABELLED = dict(id2label={"0": "LABEL_0", "1": "LABEL_1"}, label2id={"LABEL_0": 0, "LABEL_1": 1})
SUMMARY = dict(
    summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True,
    summary_type="cls_index", summary_use_proj=True,
)  # fmt: skip
BART_SWITCHES = dict(
    add_bias_logits=False, add_final_layer_norm=False, normalize_before=False,
    normalize_embedding=True, scale_embedding=False, static_position_embeddings=False,
    classif_dropout=0.1, classifier_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    gradient_checkpointing=False, early_stopping=True, no_repeat_ngram_size=3, num_beams=4,
    is_encoder_decoder=True, use_cache=True, num_hidden_layers=6, forced_bos_token_id=0,
    forced_eos_token_id=1, torch_dtype="float32", transformers_version="4.12.0.dev0",
    task_specific_params={"summarization": {"length_penalty": 1.0, "max_length": 128}},
)  # fmt: skip
# What well-known files say beside the sizes, by the small model of that architecture.
ON_THE_HUB = {
    "bert-base-uncased": (
        "bert_pretraining",
        dict(
            architectures=["BertForMaskedLM"], gradient_checkpointing=False,
            position_embedding_type="absolute", transformers_version="4.6.0.dev0", use_cache=True,
        ),
    ),
    "bert-base-multilingual-cased": (
        "bert_masked_lm",
        dict(
            directionality="bidi", pooler_fc_size=768, pooler_num_attention_heads=12,
            pooler_num_fc_layers=3, pooler_size_per_head=128, pooler_type="first_token_transform",
        ),
    ),
    "roberta-base": ("roberta_masked_lm", dict(bos_token_id=0, eos_token_id=2)),
    "roberta sentiment": (
        "roberta_classifier",
        dict(gradient_checkpointing=False, output_past=True, finetuning_task="sentiment"),
    ),
    "esm2_t6_8M_UR50D": (
        "esm_masked_lm",
        dict(
            emb_layer_norm_before=False, hidden_act="gelu", token_dropout=True, bos_token_id=None,
            esmfold_config=None, vocab_list=None, position_embedding_type="rotary",
        ),
    ),
    "albert-base-v2": (
        "albert_masked_lm",
        dict(
            classifier_dropout_prob=0.1, down_scale_factor=1, gap_size=0, inner_group_num=1,
            layers_to_keep=[], net_structure_type=0, num_memory_blocks=0,
            position_embedding_type="absolute",
        ),
    ),
    "distilbert-base-uncased": (
        "distilbert_masked_lm",
        dict(
            qa_dropout=0.1, seq_classif_dropout=0.2, sinusoidal_pos_embds=False, tie_weights_=True,
            transformers_version="4.10.0.dev0",
        ),
    ),
    "distilbert sst-2": (
        "distilbert_classifier", dict(finetuning_task="sst-2", output_past=True),
    ),
    "gpt2": (
        "gpt2",
        dict(
            **SUMMARY, n_ctx=1024, bos_token_id=50256, eos_token_id=50256,
            task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
        ),
    ),
    "distilgpt2": (
        "gpt2",
        dict(
            **SUMMARY, n_ctx=1024, _num_labels=1, id2label={"0": "LABEL_0"},
            label2id={"LABEL_0": 0},
        ),
    ),
    "Llama-2": (
        "llama",
        dict(pretraining_tp=1, rope_scaling=None, torch_dtype="float16", use_cache=True),
    ),
    "Llama-3.2": (
        "llama3",
        dict(eos_token_id=[2, 3, 4], head_dim=4, mlp_bias=False, pretraining_tp=1),
    ),
    "SmolLM2": (
        "llama",
        dict(
            is_llama_config=True, rope_interleaved=False, rope_scaling=None, pretraining_tp=1,
            **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
        ),
    ),
    "Mistral-7B-v0.1": ("mistral", dict(torch_dtype="bfloat16", use_cache=True)),
    "Qwen2.5": (
        "qwen2", dict(max_window_layers=21, rope_theta=1_000_000.0, use_mrope=False),
    ),
    "Qwen3": ("qwen3", dict(max_window_layers=28, rope_scaling=None, use_sliding_window=False)),
    "OLMo-2": ("olmo2", dict(rope_scaling=None, use_cache=False)),
    "Phi-3-mini-4k": (
        "phi3", dict(embd_pdrop=0.0, resid_pdrop=0.0, rope_theta=10_000.0),
    ),
    "gemma-2b": ("gemma", dict(hidden_act="gelu", hidden_activation=None)),
    "gemma-2-2b": (
        "gemma2", dict(cache_implementation="hybrid", hidden_act="gelu_pytorch_tanh"),
    ),
    "gemma-3-1b": (
        "gemma3",
        dict(cache_implementation="hybrid", sliding_window_pattern=3, attn_logit_softcapping=None),
    ),
    "pythia": ("gpt_neox", dict(rotary_emb_base=10_000, tie_word_embeddings=False)),
    "opt-125m": ("opt", dict(activation_dropout=0.0, layerdrop=0.0, prefix="</s>")),
    "first llama": ("llama", dict(max_sequence_length=2048, pad_token_id=-1)),
    "t5-small": (
        "t5",
        dict(
            architectures=["T5WithLMHeadModel"], initializer_factor=1.0, is_encoder_decoder=True,
            n_positions=512, output_past=True, decoder_start_token_id=0,
            task_specific_params={"summarization": {"prefix": "summarize: "}},
        ),
    ),
    "flan-t5": (
        "t5_v1_1",
        dict(
            dense_act_fn="gelu_new", is_gated_act=True, classifier_dropout=0.0, n_positions=512,
            output_past=True, tie_word_embeddings=False, use_cache=True,
        ),
    ),
    "mt5-small": (
        "mt5",
        dict(
            tokenizer_class="T5Tokenizer", tie_word_embeddings=False, is_encoder_decoder=True,
            initializer_factor=1.0, output_past=True,
        ),
    ),
    "opus-mt-en-de": (
        "marian",
        dict(
            _num_labels=3, add_bias_logits=False, add_final_layer_norm=False, bos_token_id=0,
            bad_words_ids=[[22]], classif_dropout=0.0, classifier_dropout=0.0,
            decoder_layerdrop=0.0, encoder_layerdrop=0.0, extra_pos_embeddings=23,
            gradient_checkpointing=False, forced_eos_token_id=0, max_length=512, num_beams=6,
            normalize_before=False, normalize_embedding=False, num_hidden_layers=6,
            static_position_embeddings=True, is_encoder_decoder=True, save_step=1,
            share_encoder_decoder_embeddings=True, **LABELLED,
        ),
    ),
    "bart-base": ("bart", dict(BART_SWITCHES, architectures=["BartModel"])),
    "bart-large-cnn": (
        "bart",
        dict(
            BART_SWITCHES, _num_labels=3, force_bos_token_to_be_generated=True, prefix=" ",
            length_penalty=2.0, max_length=142, min_length=56, output_past=True, save_step=58,
        ),
    ),
    "KoBART": (
        "bart",
        dict(
            BART_SWITCHES, author="A. N. Author", kobart_version=2.0, extra_pos_embeddings=2,
            do_blenderbot_90_layernorm=False, tokenizer_class="PreTrainedTokenizerFast",
        ),
    ),
    "gpt-oss-20b, dequantised": (
        "gpt_oss",
        dict(
            attention_bias=True, attention_dropout=0.0, eos_token_id=200_002, experts_per_token=4,
            hidden_act="silu", initial_context_length=4096, output_router_logits=False,
            pad_token_id=199_999, router_aux_loss_coef=0.9, swiglu_limit=7.0, rope_theta=150_000,
            rope_scaling=dict(
                beta_fast=32.0, beta_slow=1.0, factor=32.0, rope_type="yarn", truncate=False,
                original_max_position_embeddings=4096,
            ),
        ),
    ),
    "nllb-200-distilled-600M": (
        "m2m_100",
        dict(
            is_encoder_decoder=True, decoder_layerdrop=0, encoder_layerdrop=0, max_length=200,
            num_hidden_layers=12, tokenizer_class="NllbTokenizer", use_cache=True,
        ),
    ),
    "m2m100_418M": (
        "m2m_100",
        dict(
            is_encoder_decoder=True, decoder_layerdrop=0.05, early_stopping=True, max_length=200,
            gradient_checkpointing=False, num_beams=5, encoder_layerdrop=0.05,
        ),
    ),
    "vit-base-patch16-224": (
        "vit_classifier", dict(qkv_bias=True, encoder_stride=16, transformers_version="4.13.0"),
    ),
    "deit-base-distilled-patch16-224": (
        "deit_classifier", dict(qkv_bias=True, transformers_version="4.13.0.dev0"),
    ),
    "dinov2-base": (
        "dinov2_classifier",
        dict(
            drop_path_rate=0.0, use_swiglu_ffn=False, qkv_bias=True, apply_layernorm=True,
            out_features=["stage1"], stage_names=["stem", "stage1"], reshape_hidden_states=True,
        ),
    ),
    "vit-base-patch16-224-in21k": (
        "vit_base", dict(pooler_act="tanh", encoder_stride=16, _name_or_path="google/vit"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", ON_THE_HUB)
def test_configs_of_hub_models_are_accepted_unchanged(model, changed):
    name, keys = ON_THE_HUB[model]
    if "head_dim" in keys:
        keys = keys | {"head_dim": json.loads((FIXTURES / name / CONFIG).read_text())["head_dim"]}
    assert published.read(changed(name, **keys)).head


def test_gpt_oss_has_yarn_also_without_rope_parameters(changed):
    found = published.read(changed("gpt_oss", rope_parameters=None, rope_scaling=None)).model
    expected = dict(
        rope_scaling="yarn", rope_factor=32.0, rope_low_frequency=1.0, rope_high_frequency=32.0,
        rope_original_length=4096, rope_truncate=False, rope_theta=150_000.0,
    )  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    switched_off = published.read(
        changed("gpt_oss", rope_parameters=None, rope_scaling=dict(rope_type="default"))
    )
    assert switched_off.model["rope_scaling"] == "default"


def test_weights_in_mxfp4_are_refused_with_a_remedy(changed):
    quantised = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    line = refusal(changed("gpt_oss", quantization_config=quantised))
    assert "quantization_config=" in line and "Mxfp4Config(dequantize=True)" in line


def test_no_key_is_called_harmless_that_is_read():
    """A table must not hide a key that an architecture needs, or one at which a value counts."""
    for each in ARCHITECTURES.values():
        read = {theirs for theirs, _ in each.keys.values()} | each.required_values.keys()
        harmless = known_keys.HARMLESS | each.harmless
        assert not read & harmless, each.model_type
        assert not each.aliases.keys() & harmless, each.model_type
        assert not each.harmless & each.neutral.keys(), each.model_type
        assert set(each.aliases.values()).isdisjoint(each.aliases), each.model_type


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_configs_saved_by_transformers_need_no_flag(name, tmp_path):
    """With all its keys, at its defaults, and by save_pretrained."""
    _, hf = oracle()
    model = EXAMPLES[name].build(hf, Draw(3))
    model.save_pretrained(tmp_path)
    found = published.read(tmp_path)
    every = json.loads(model.config.to_json_string(use_diff=False))
    written = json.loads((tmp_path / CONFIG).read_text())
    assert every.keys() > written.keys() - {"architectures"}
    every["architectures"] = written["architectures"]
    (tmp_path / CONFIG).write_text(json.dumps(every))
    assert published.read(tmp_path).model == found.model
    defaults = json.loads(type(model.config)().to_json_string(use_diff=False))
    assert not defaults.keys() - every.keys()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_settings_of_generate_are_those_of_transformers():
    _, hf = oracle()
    ours = known_keys.HARMLESS
    assert not set(hf.GenerationConfig._get_default_generation_params()) - ours


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_other_names_are_those_of_transformers():
    _, hf = oracle()
    for kind, each in ARCHITECTURES.items():
        theirs = dict(hf.CONFIG_MAPPING[kind].attribute_map)
        if kind in ("bart", "marian", "mbart", "pegasus", "m2m_100"):
            assert theirs.pop("num_hidden_layers") == "encoder_layers"
        if kind == "qwen3_moe":  # published files have the name that is an alias since then
            theirs = {name: alias for alias, name in theirs.items()}
        assert each.aliases == theirs, kind


def other(value):
    """A value of the same kind that is not this one."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 + 0.1
        case None:
            return "tanh"
    return value


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_harmless_keys_change_nothing_in_transformers(name, tmp_path):
    """Every key that is called harmless for an architecture, at another value than its default."""
    torch, hf = oracle()
    model = randomize(EXAMPLES[name].build(hf, Draw(3)), 3)
    model.save_pretrained(tmp_path)
    inputs = EXAMPLES[name].inputs(np.random.default_rng(3), model.config)
    with torch.no_grad():
        expected = answers(model, inputs, EXAMPLES[name].outputs)

    config = json.loads((tmp_path / CONFIG).read_text())
    keys = published.read(tmp_path).architecture.harmless | {"chunk_size_feed_forward"}
    # Read where there is a pooler; of another meaning since transformers 5.
    keys -= {"pooler_act", "pooler_output_size", "num_hidden_layers"}
    keys -= {"out_features", "out_indices", "stage_names"}  # numbers and names of its layers
    defaults = type(model.config)()
    config |= {key: other(getattr(defaults, key, None)) for key in keys}
    # Without it, transformers mixes up the two caches of an encoder-decoder.
    config["is_encoder_decoder"] = True
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert published.read(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        found = answers(again, inputs, EXAMPLES[name].outputs)
    for output, value in expected.items():
        torch.testing.assert_close(found[output], value, rtol=0, atol=1e-6)
