"""ESM-2 and ESM-1b: pre-norm encoders of proteins, with rotary or learned positions."""

import numpy as np

from model.positions import rope_frequencies
from pretrained import bert, roberta
from pretrained.architecture import Architecture, Head, MisfitError, require_plain_heads
from pretrained.layouts import At, below
from pretrained.rope_keys import OURS

POSITIONS = dict(absolute="learned", rotary="rope")
# As the hub's files name them; transformers 5 keeps one table for all layers.
FREQUENCIES = "esm.encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"


def table(model, head, ids):
    """Our modules, each with the place of its tensors in ESM's files."""
    del model
    classes = "classifier" if head.objective == "classify_tokens" else "classifier.out_proj"
    return {
        "backbone/token_embedding": "esm.embeddings.word_embeddings",
        "backbone/encoder/position_embedding": At(
            "esm.embeddings.position_embeddings", rows_before=roberta.rows_before(ids)
        ),
        "backbone/encoder/embedding_norm": "esm.embeddings.layer_norm",
        **below(
            "backbone/encoder/blocks",
            "esm.encoder.layer.{layer}",
            {
                "self_attention_norm": "attention.LayerNorm",
                "self_attention/query": "attention.self.query",
                "self_attention/key": "attention.self.key",
                "self_attention/value": "attention.self.value",
                "self_attention/out": "attention.output.dense",
                "feed_forward_norm": "LayerNorm",
                "feed_forward/in": "intermediate.dense",
                "feed_forward/out": "output.dense",
            },
        ),
        "backbone/encoder/final_norm": "esm.encoder.emb_layer_norm_after",
        "pool/dense": "classifier.dense" if head.reads_texts else "esm.pooler.dense",
        "transform": "lm_head.dense",
        "transform_norm": "lm_head.layer_norm",
        "vocabulary": "lm_head",
        "classes": classes,
    }


def read_more(config, shapes, head):
    """Our `model` keys of ESM, beyond those that are only renamed."""
    config.require("hidden_act", "gelu")  # which transformers computes, whatever this says
    config.need("pad_token_id")
    ours = roberta.read_more(config, shapes, head) | dict(
        position=config.translate("position_embedding_type", POSITIONS, "absolute"),
        token_dropout=config.get("token_dropout", False),
        dropout_embedding=0.0,
        pooler=head.reads_texts
        or (head.objective == "embed" and any("pooler.dense" in name for name in shapes)),
    )
    if ours["token_dropout"]:
        mask = config.get("mask_token_id")
        if type(mask) is not int or not 0 <= mask < config.size("vocab_size"):
            config.refuse("mask_token_id", mask, "token_dropout=true needs the id of the mask")
        ours["mask_id"] = mask
    return ours


def read_tensors(ours, tensors):
    """Our `model` keys for rotary frequencies that a file has otherwise than theta gives them.

    transformers rotates by those of the file: a model in 16 bits has rounded them.
    """
    names = sorted(name for name in tensors.shapes if name.endswith("rotary_embeddings.inv_freq"))
    # transformers prefers the name of newer files, and of old ones takes the first layer.
    names.sort(key=lambda name: ".attention." in name)
    pairs = ours["head_size"] // 2
    if ours["position"] != "rope" or not names or tensors.shapes[names[0]] != (pairs,):
        return {}
    found = np.asarray(tensors.read(names[0], (slice(None),)), np.float64)
    expected = ours["rope_theta"] ** -(np.arange(0, 2 * pairs, 2, dtype=np.float64) / (2 * pairs))
    if not (np.isfinite(found) & (found > 0)).all() or np.allclose(found, expected, 1e-6, 0):
        return {}
    factors = tuple((expected / found).tolist())
    return dict(
        rope_scaling="longrope",
        rope_short_factors=factors,
        rope_long_factors=factors,
        rope_attention_factor=1.0,
    )


def computed(model):
    """The rotary frequencies, which files of transformers have."""
    if model.position != "rope":
        return {}
    frequencies = rope_frequencies(model)
    return {FREQUENCIES.format(layer=n): frequencies for n in range(model.encoder_layers)}


def write_more(model, head, ids):
    """ESM's config keys, beyond those that are only renamed; raises MisfitError."""
    require_plain_heads(model)
    names = {ours: theirs for theirs, ours in POSITIONS.items()}
    if model.position not in names:
        raise MisfitError(f"model.position={model.position} is not one of: {', '.join(names)}")
    short, long = model.rope_short_factors, model.rope_long_factors
    is_own = model.rope_scaling == "longrope" and model.rope_attention_factor == 1
    if model.rope_scaling != "default" and not (is_own and short == long):
        raise MisfitError(f"model.rope_scaling={model.rope_scaling} is missing")
    if model.activation != "gelu":
        raise MisfitError(f"model.activation={model.activation}, but ESM has gelu")
    has_pooler = model.pooler and model.pooler_activation == "tanh"
    if model.pooler != has_pooler or (head.reads_texts and not has_pooler):
        raise MisfitError("model.pooler=True with model.pooler_activation=tanh is needed")
    if model.pooler and head.objective in ("masked_lm", "classify_tokens"):
        raise MisfitError("model.pooler=True, but only classes of texts have a pooler")
    if model.dropout_embedding:
        raise MisfitError("model.dropout_embedding must be 0")
    before = roberta.rows_before(ids)
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        max_position_embeddings=model.max_length + before,
        position_embedding_type=names[model.position],
        token_dropout=model.token_dropout,
        pad_token_id=before - 1,
        **({"mask_token_id": model.mask_id} if model.token_dropout else {}),
    )


UNLIKE_BERT = ("token_types", "dropout_embedding")

ESM = Architecture(
    model_type="esm",
    heads={
        "EsmModel": Head("embed"),
        "EsmForMaskedLM": Head("masked_lm"),
        "EsmForSequenceClassification": Head("classify_text"),
        "EsmForTokenClassification": Head("classify_tokens"),
    },
    style=dict(
        family="encoder", input="tokens", token_types=0, embedding_scale=False, tie_output=True,
        output_scale=False, output_bias=True, norm="layernorm", norm_placement="pre", bias=True,
        attention_scale=True, pooling="first",
    ),
    keys={ours: theirs for ours, theirs in bert.KEYS.items() if ours not in UNLIKE_BERT}
    | dict(embedding_norm=("emb_layer_norm_before", False), rope_theta=("rope_theta", 10_000.0)),
    required_values=dict(
        is_decoder=False, add_cross_attention=False, tie_word_embeddings=True,
        is_folding_model=False,
    ),
    # Of ESMFold, which is_folding_model asks for.
    neutral=dict(esmfold_config=(), vocab_list=()),
    table=table,
    read_more=read_more,
    read_tensors=read_tensors,
    write_more=write_more,
    computed=computed,
    sets=frozenset((*OURS, "token_dropout")),
    base="esm.",
    # The head that predicts contacts from all attention weights is left out. Files of models with
    # rotary positions also have a table of learned ones, which nothing reads.
    other_heads=(
        "esm.contact_head.regression", "esm.pooler.dense", "esm.embeddings.position_embeddings",
        "classifier.dense",
    ),
    renames=bert.OLD_NORMS,
    derived=(r"embeddings\.position_ids$", r"rotary_embeddings\.inv_freq$"),
    copies=(("lm_head.decoder.weight", "esm.embeddings.word_embeddings.weight"),),
)  # fmt: skip
