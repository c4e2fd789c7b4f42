"""All config keys, each with its default and its meaning.

The file of an experiment starts from these and changes some. Nothing else supplies defaults.
Unless a comment says otherwise, 0 or "" switches a feature off, or means that the value follows
from the other keys or from the data.
"""

import ml_collections

from configs import renamed_keys


def get_config(arg=None):
    del arg
    config = renamed_keys.Config()

    # The run
    config.seed = 0  # of parameters, dropout and the order of the data
    config.steps = 1000  # updates of the parameters
    # Minutes after the first step, over all resumptions. The run then ends as if it were done, with
    # its learning rate at the end of its decay. 0: no limit
    config.time_limit = 0.0
    config.log_every = 50  # steps between log lines
    # Another run's workdir, WORKDIR:STEP, or hf://ORG/NAME on the hub, to take parameters from
    config.init_from = ""
    config.profile_steps = (0, 0)  # first and last step of a profiler trace
    config.wandb_project = ""  # needs the extra `wandb`
    # Directory of compiled programs; "": JAX_COMPILATION_CACHE_DIR, or ~/.cache/backbone/programs
    # if that is not set; off: none
    config.compilation_cache = ""

    config.model = ml_collections.ConfigDict(
        dict(
            # The kind of network
            family="encoder_decoder",  # encoder | decoder | encoder_decoder
            input="tokens",  # tokens | patches (images, sounds, series, cut into patches)
            # Sizes
            vocab_size=0,  # V; 0: the tokenizer's size
            width=128,  # D
            encoder_layers=2,  # of the encoder, if there is one
            decoder_layers=2,  # of the decoder, if there is one
            # Groups of neighbouring layers that share their parameters: 1 is one set for all layers
            # (ALBERT); 0: each layer has its own
            layer_groups=0,
            heads=4,  # H
            kv_heads=0,  # G: heads of keys and values; 0: as many as query heads
            head_size=0,  # K; 0: width / heads
            feed_forward=512,  # F
            # mlp | linear (no nonlinearity and no gate) | none (blocks have no feed-forward layer)
            feed_forward_kind="mlp",
            # Experts in place of the feed-forward layer, each of size feed_forward; 0: none. See
            # docs/experts.md
            experts=0,
            experts_per_token=2,  # how many of them a token uses, those with the highest scores
            shared_experts=0,  # more experts, which every token uses
            router_scores="softmax",  # softmax (over all experts) | sigmoid (of each)
            router_renormalise=True,  # divide the scores of a token's experts by their sum
            router_bias=False,  # a bias of each expert in the router (gpt-oss)
            # An expert takes at most this many times the even share of a row's tokens, the first
            # ones, and drops the others; 0: it takes all
            expert_capacity=0.0,
            # Factors of two losses on the router, means over tokens and layers: an uneven load of
            # the experts, and the squared logarithm of the softmax's denominator
            load_balance_loss=0.01,
            router_z_loss=0.0,  # see load_balance_loss
            max_length=512,  # the longest sequence that absolute positions can address
            # Embeddings
            # sinusoidal | learned | rope | alibi | t5_bias | transformer_xl | none
            position="sinusoidal",
            # Amplitude of the sinusoids; 0: the initial standard deviation of token embeddings, so
            # that neither swamps the other; 1 with embedding_scale=True, as in the 2017 paper
            sinusoidal_scale=0.0,
            # paper: column i turns by 10000^(-2i/D) | tensor2tensor: by 10000^(-i/(D/2-1))
            sinusoidal_variant="paper",
            sinusoidal_offset=0,  # the number of the first position; fairseq's models begin at 2
            rope_theta=10_000.0,  # base of the wavelengths of rope
            # The base of layers that see only near keys (local), which are then not scaled (Gemma
            # 3); 0: rope_theta
            rope_local_theta=0.0,
            rope_fraction=1.0,  # share of each head's columns that rope rotates, the first ones
            # Which layers rope rotates, a pattern that the layers repeat: (1, 1, 1, 0) leaves out
            # every fourth (SmolLM3); (): all
            rope_layers=(),
            # How rope is scaled for longer rows than in training: default | linear (all angles
            # divided by rope_factor) | ntk (rope_theta times rope_factor ** (K / (K - 2)): divides
            # the lowest frequency by it, keeps the highest) | llama3 (low frequencies only) | yarn
            # (low frequencies, and larger scores) | longrope (a divisor for each frequency)
            rope_scaling="default",
            rope_factor=1.0,  # how many times longer, for all but default
            # llama3 and yarn scale angles with fewer than rope_low_frequency turns in the original
            # length, not those with more than rope_high_frequency turns, others partly
            rope_low_frequency=1.0,
            rope_high_frequency=4.0,  # see rope_low_frequency; usual with yarn: 32
            rope_original_length=8192,  # llama3, yarn, longrope: the context length before scaling
            # yarn and longrope multiply rotated queries and keys by it; 0: by the papers' formulas
            rope_attention_factor=0.0,
            # yarn rounds the first and last pair of columns that it scales partly; gpt-oss: False
            rope_truncate=True,
            # longrope: divisors of the frequencies, one for each pair of columns. The long ones are
            # used if max_length is above rope_original_length
            rope_short_factors=(),
            rope_long_factors=(),  # see rope_short_factors
            relative_buckets=32,  # t5_bias and relative_bias only
            relative_max_distance=128,  # see relative_buckets
            # T5's learned bias of scores for relative positions beside another `position` (MPNet)
            relative_bias=False,
            own_relative_bias=False,  # each layer has its own such bias (umT5), not one for all
            token_types=0,  # number of BERT's segment embeddings
            # Columns of the embeddings, which a layer then projects (ELECTRA); 0: width
            embedding_size=0,
            embedding_scale=False,  # multiply token embeddings by sqrt(width)
            embedding_multiplier=1.0,  # multiply token embeddings by this (Granite)
            embedding_norm=False,  # normalise the sum of the embeddings (BERT)
            # Masked tokens have no embedding, and the others are scaled to make up for it (ESM-2)
            token_dropout=False,
            mask_id=0,  # the token that masks others, for token_dropout; 0: the tokenizer's
            share_embeddings=True,  # encoder_decoder: one token table for encoder and decoder
            tie_output=True,  # the output layer is the transposed token table
            output_scale=False,  # multiply the final hidden state by width ** -0.5 (T5 v1.0)
            output_bias=False,  # a bias for each token in the output layer
            logit_multiplier=1.0,  # multiply logits by this (Granite, Cohere)
            logit_cap=0.0,  # soft cap: logits become cap * tanh(logits / cap) (Gemma 2)
            # Blocks
            residual=True,  # add the input of a layer to its output
            residual_multiplier=1.0,  # multiply what a layer adds by this (Granite)
            # Multiply what a layer adds by a learned vector that starts here (DINOv2); 0: none
            layer_scale=0.0,
            # Attention and feed-forward layer both read the block's input: none (one after the
            # other) | one_norm (they share a norm: Cohere) | two_norms (GPT-NeoX)
            parallel_residual="none",
            norm="layernorm",  # layernorm | rmsnorm | none
            # Where a layer is normalised: pre (its input) | post (the sum, as in 2017) | sandwich
            # (its input and its output: Gemma 2) | reordered (its output, before the sum: OLMo 2)
            norm_placement="pre",
            # False: what mixes tokens in the first layer has no norm before it (ModernBERT)
            first_norm=True,
            norm_epsilon=1e-6,  # added to the variance
            norm_zero_centered=False,  # multiply by 1 + scale, with scales that start at 0 (Gemma)
            norm_bias=False,  # a bias in layernorm even with bias=False (Falcon, StableLM)
            # relu | gelu | gelu_tanh | silu; gated: reglu | geglu | geglu_tanh | swiglu |
            # swiglu_clamped (gpt-oss: the gate is at most activation_limit, and the other factor,
            # between -activation_limit and activation_limit, is increased by 1)
            activation="relu",
            activation_limit=7.0,  # see activation
            bias=True,  # in dense layers and layernorm
            # What mixes the tokens of a sequence: attention | rnn | gru | lstm | conv | mean (a bag
            # of tokens). See docs/mixers.md
            mixer="attention",
            mixer_options=(),  # (("taps", 5.0),): options that a mixer declares
            # encoder_decoder: how the decoder reads its source: attention (cross-attention) |
            # context_vector (one vector, the mean of the encoder's hidden states)
            bridge="attention",
            # dot | flash | local | longformer | performer | linear | chunked | hierarchical |
            # recurrent | additive; or a pattern that the layers repeat: local,local,dot. See
            # docs/attention.md
            attention="dot",
            attention_scale=True,  # divide scores by sqrt(head_size); T5 does not
            attention_multiplier=0.0,  # multiply scores by this instead; 0: as attention_scale says
            # Without attention_scale, draw the query weights smaller by sqrt(head_size) instead, as
            # T5 does; only with init_std=0
            attention_scale_init=True,
            # Biases of attention with bias=False: default (none) | qkv (of queries, keys, values:
            # Qwen2) | all (of the output too)
            attention_bias="default",
            # Soft cap: scores become cap * tanh(scores / cap), before positions are added (Gemma 2)
            score_cap=0.0,
            # A learned score for each head beside those of the keys: what attends to it attends to
            # nothing (gpt-oss)
            attention_sinks=False,
            # Normalise queries and keys by `norm`, before rope: none | head (each head, with one
            # scale for all heads: Qwen3) | heads (each head, with its own scale: Cohere) | full
            # (all heads together: OLMo 2)
            qk_norm="none",
            share_qk=False,  # one projection for queries and keys
            attention_window=256,  # local, longformer: keys closer than this are seen
            attention_dilation=1,  # longformer: every n-th key, over an n times larger window
            # longformer: which tokens are global: first (of each text) | separators | question (all
            # tokens up to the first separator)
            global_tokens="first",
            global_limit=64,  # longformer: rows with more global tokens are exact, but slow
            separator_id=0,  # the token that separates texts; 0: the tokenizer's
            attention_chunk=256,  # chunked, hierarchical, recurrent: positions in a chunk
            attention_overlap=64,  # chunked: positions next to the chunk that are also seen
            attention_memory=256,  # recurrent: positions before the chunk that are also seen
            attention_features=256,  # performer: random features
            attention_kernel="softmax",  # performer: softmax | relu
            # performer: training steps between draws of random features; 0: always the features of
            # evaluation. Many steps with one draw fit the model to it; see docs/attention.md
            attention_redraw=0,
            attention_options=(),  # (("name", 2.0),): options that a kind of attention declares
            # Images
            image_size=0,  # 0: the data's
            image_channels=0,  # 0: the data's
            # The size of images that learned positions are for, if it is not image_size: they are
            # interpolated (DINOv2); 0: image_size
            position_image_size=0,
            patch_size=16,  # pixels, frames or steps of a side of a patch
            class_token=True,  # a learned token before the patches
            # A second learned token (DeiT): none | token | head (it has its own classifier, and
            # logits are the mean of both)
            distillation="none",
            # Sounds and series
            # Sizes of the axes to cut into patches, one or two, and channels; (): the data's
            input_shape=(),
            # The model subtracts input_mean and divides by input_std, one number or one for each
            # channel; (): those of the training data, which the run records
            input_mean=(),
            input_std=(),  # see input_mean
            horizon=0,  # values to forecast; 0: the data's
            # Classification
            num_classes=0,  # 0: the data's
            # Which hidden state is classified: first | last | mean | first_mean (the first, and the
            # mean of the others, side by side: DINOv2)
            pooling="first",
            pooler=False,  # a dense layer before the classifier (BERT)
            # tanh | relu (DistilBERT) | gelu (ModernBERT, ELECTRA): of the pooler
            pooler_activation="tanh",
            pooler_norm=False,  # a norm after the pooler (ModernBERT)
            head_bias=True,  # in the pooler, and in the dense layer before masked tokens
            class_bias=True,  # in the output layer of a classifier (False: Llama's)
            # Dropout rates
            dropout_embedding=0.0,  # after the sum of the embeddings
            dropout_attention=0.0,  # of the attention weights
            dropout_residual=0.0,  # of what a layer adds to the residual stream
            dropout_feed_forward=0.0,  # inside the feed-forward layer
            # How it is computed
            init_std=0.0,  # of all weights; 0: variance scaled by fan-in
            # standard | mup: initial sizes, score scale, output layer and learning rates such that
            # a learning rate tuned at mup_base_width suits any width; see docs/ablations.md
            parametrization="standard",
            mup_base_width=0,  # mup: the width of the model that was tuned
            # mup: the head size of that model; 0: it had as many heads as this one
            mup_base_head_size=0,
            dtype="float32",  # float32 | bfloat16: activations
            param_dtype="float32",  # of the stored parameters: float32 | bfloat16
            # Products with the weights of the blocks: float (in dtype) | int8 | fp8. Parameters
            # keep their type. 8 bits need pip install -e '.[quantized]'; see docs/platforms.md
            matmul="float",
            # What the backward pass recomputes: none | dots (all but products with parameters and
            # the output of attention) | save_attention (all but the output of attention) | full
            remat="none",
            # Layers per step of the scan over layers; 0: all on CPU without remat, 1 elsewhere
            unroll=0,
        )
    )

    config.data = ml_collections.ConfigDict(
        dict(
            # Embedded: dates | pydoc | names | digits | listops | recall. Your own: text_files |
            # translation_files | labelled_text_files | image_files | text_to_text_files |
            # chat_files | preference_files | item_files | sound_files |
            # series_files. Or tfds | huggingface.
            source="dates",
            path="",  # of your own files: a directory, a glob or a file; see docs/data.md
            name="",  # tfds: such as wmt17_translate/de-en; huggingface: nyu-mll/glue:sst2
            version="",  # tfds: such as 1.0.0; huggingface: a revision; "": the newest at hand
            kind="",  # tfds and huggingface: pairs | documents | labelled | images
            train_split="train",  # your own files: train.tsv, train-00000-of-00004.tsv, train/...
            eval_split="validation",  # the split that evaluations score
            eval_share=0.1,  # share of your own data that is held out, if the files name no splits
            train_examples=0,  # train on a fixed random sample of this many examples; 0: all
            source_language="",  # pairs: a file's ending, or the field of the data set
            target_language="",  # the same for the targets
            text_field="text",  # tfds and huggingface: the data set's names of these fields
            text_pair_field="",  # the field of the second text, for classes of pairs
            label_field="label",  # the field of the class
            max_bad_records=0,  # bad records of each split to skip and log
            # Unbalanced classes of texts: none | weights (of training examples, so that all classes
            # have the same weight) | oversample (examples of rare classes are repeated, so that
            # all classes are equally frequent)
            class_balance="none",
            class_weights=(),  # (("spam", 2.0),): factors on the weights of training examples
            # Several sources in one: (("text_files:books/*.txt", 3.0), ("tfds:lm1b", 1.0)), or of
            # text_to_text_files the tasks, (("summarize", 2.0), ("translate", 1.0)). The numbers
            # are shares of the rows. Without a mixture, tasks are mixed by their sizes.
            mixture=(),
            # Options of one source, such as --config.data.options.depth=5 in configs/listops.py.
            # The file of the source, in input_pipeline/sources/, lists them
            options={},
            # byte; or bpe | wordpiece | unigram | word | item, trained on the data; or a file:
            # tokenizer.json, a SentencePiece .model, BERT's vocab.txt, GPT-2's encoder.json
            # (vocab.bpe beside it); or a model's on the hub, hf://ORG/NAME
            tokenizer="byte",
            tokenizer_size=8192,  # of a tokenizer that is trained: the largest number of ids
            lowercase=False,  # bpe, wordpiece, unigram, word: convert text to lower case first
            cache_dir="",  # of tokenized text, also in a bucket; "": ~/.cache/backbone
            verify_cache=True,  # compare prepared data with its digests when a run starts
            batch_size=64,  # rows in a step, over all processes
            length=64,  # T: tokens in a row; in encoder_decoder models, in the decoder's row
            encoder_length=64,  # encoder_decoder: tokens in the encoder's row
            packing=False,  # put several examples into a row; each attends only to itself
            buckets=(),  # (16, 32): batches of similar lengths, padded to 16, 32 or length
            bucket_count=0,  # number of buckets to choose from the lengths of the training examples
            over_long="truncate",  # truncate | split | drop: training examples that do not fit
            # Images: values from 0 to 1, minus image_mean, divided by image_std
            image_size=0,  # rows and columns to resize to; 0: all must be square and of one size
            # Resize images to this size first, and cut the centre of image_size out of them; 0: to
            # image_size, which leaves nothing to cut from squares
            image_edge=0,
            # center_crop: resize the shorter side, then crop the centre | stretch: both sides |
            # crop: crop the centre, then resize it
            image_fit="center_crop",
            image_resample="bicubic",  # | nearest | box | bilinear | hamming | lanczos
            image_upright=True,  # turn photographs as their EXIF orientation says
            image_mean=(),  # one number, or one for each channel; (): 0
            image_std=(),  # one number, or one for each channel; (): 1
            # Augmentation of training images, in this order; see input_pipeline/augmentation.py
            crop_padding=0,  # black pixels to add on each side before a random crop of the old size
            crop_scale=0.0,  # smallest share of the area in a random crop, which is then enlarged
            flip=False,  # swap left and right with probability 1/2
            random_erasing=0.0,  # probability that noise replaces a rectangle of the image
            mixup=0.0,  # alpha of the Beta distribution by which two images are blended
            # Read ahead
            prefetch=4,  # batches prepared ahead
            workers=0,  # processes that prepare them; 0: a thread
        )
    )

    config.task = ml_collections.ConfigDict(
        dict(
            # seq2seq | causal_lm | fill_in_middle | prefix_lm | masked_lm | masked_items |
            # span_corruption | dpo | classify_text | classify_tokens | regress_text | answer_span |
            # classify_images | classify_sounds | forecast |
            # embed (only for published models; cannot be trained)
            objective="seq2seq",
            label_smoothing=0.0,  # the share of the target that all classes get evenly
            z_loss=0.0,  # weight of log(Z) ** 2, which keeps logits near 0
            noise_rate=0.15,  # share that masked_lm, masked_items and span_corruption mask
            mean_span=3.0,  # mean length of span_corruption's spans
            fim_rate=0.5,  # fill_in_middle: share of training rows that end in their middle
            fim_spm_rate=0.5,  # share of those that begin with the suffix, not with the prefix
            whole_words=False,  # masked_lm: mask all tokens of a word or none
            auxiliary_masked_lm=0.0,  # classify_text: weight of an additional masked_lm loss
            next_sentence=False,  # masked_lm: also predict whether two parts are consecutive
            # Distillation: the workdir (or WORKDIR:STEP) of a run that predicts soft targets
            teacher="",
            teacher_weight=0.5,  # of the loss on soft targets; the loss on the data has the rest
            teacher_temperature=2.0,  # divides the logits of both models
            quantiles=(0.1, 0.5, 0.9),  # forecast: levels of the quantiles that are predicted
            dpo_beta=0.1,  # dpo: scale of rewards; smaller: further from the reference
            # answer_span: tokens of a long context that neighbouring windows share
            window_overlap=128,
            answer_tokens=30,  # answer_span: the most tokens of an answer that is found
            unanswerable=False,  # answer_span: some questions have no answer in their context
            embedding="pooled",  # embed: pooled (as for classes) | first | mean hidden state
            normalize=False,  # embed: divide the embedding by its length
        )
    )

    config.optimizer = ml_collections.ConfigDict(
        dict(
            name="adamw",  # adam | adamw | adafactor | lion | muon | sgd
            schedule="cosine",  # constant | linear | cosine | stable_decay | inverse_sqrt
            learning_rate=1e-3,  # the peak; inverse_sqrt: factor on the 2017 formula
            warmup_steps=100,  # of linear growth of the learning rate
            decay_steps=0,  # the step where decay ends; 0: the last step
            decay_fraction=0.2,  # stable_decay: share of the steps spent decaying
            final_fraction=0.0,  # learning rate at the end of decay, as a fraction of the peak
            beta1=0.9,  # also the momentum of sgd and muon
            beta2=0.999,  # decay of the mean square of the gradient
            epsilon=1e-8,  # added to the root of that mean
            weight_decay=0.0,  # adamw, adafactor, lion, muon
            decay_embeddings=False,  # norms and biases never decay
            clip_norm=1.0,  # global gradient norm; 0: no clipping
            accumulate=1,  # micro-batches in a step
            ema_decay=0.0,  # evaluate an exponential moving average of the parameters
            # How updates of bfloat16 parameters are rounded: nearest (loses small updates) |
            # stochastic (up or down at random, unbiased) | master (keeps a float32 copy)
            rounding="nearest",
            # The type in which devices sum the gradients of kernels. bfloat16 halves the bytes
            # sent; for models with dtype=bfloat16 and param_dtype=float32
            gradient_dtype="float32",
            offload=False,  # keep the optimizer state in host memory between updates
        )
    )

    # Patterns are regular expressions over whole names of parameters, such as
    # backbone/encoder/blocks/self_attention/query/kernel; a run's log lists all names.
    config.finetune = ml_collections.ConfigDict(
        dict(
            # Rank of the adapters (LoRA) on weights of the blocks. The parameters of init_from are
            # frozen; they are read from init_from whenever the run is resumed or used
            lora_rank=0,
            lora_alpha=16.0,  # an adapter's output is multiplied by lora_alpha / lora_rank
            lora_targets=".*/(query|value)/kernel",  # a pattern of the parameters that get adapters
            # A pattern of parameters to train in full. Parameters that init_from lacks always are
            lora_also_train="",
            freeze="",  # a pattern of parameters that are not trained; not with adapters
            layer_decay=1.0,  # factor on the learning rate from each layer to the one below
            head_scale=1.0,  # factor on the learning rate of parameters outside backbone/
            # Fit the token tables of init_from to another tokenizer: tokens of both keep their
            # rows, new rows begin as the mean of the old
            resize_vocabulary=False,
        )
    )

    # Weights that become zero during training and stay zero; see docs/ablations.md
    config.prune = ml_collections.ConfigDict(
        dict(
            # none | magnitude (the smallest weights) | 2:4 (the two smallest of each four inputs) |
            # heads (the attention heads that the loss depends on least)
            method="none",
            share=0.0,  # share of the weights, or of the heads, that is zero in the end
            scope="matrix",  # matrix: this share of every matrix | global: of all together
            begin_step=1,  # the first step after which weights are pruned
            end_step=0,  # the step after which `share` is reached; 0: half of the steps
            every=100,  # steps from one pruning to the next
            # A pattern of the parameters to prune. By default all matrices of the blocks:
            # no embeddings, norms, biases and output layers
            parameters=".*/blocks/.*/kernel",
        )
    )

    # Sizes of the mesh axes; -1: the remaining devices. Their product is the device count.
    config.mesh = ml_collections.ConfigDict(dict(data=-1, fsdp=1, sequence=1, tensor=1))

    config.checkpoint = ml_collections.ConfigDict(
        dict(
            every=500,  # steps; the last step is always saved; 0: only that
            keep=2,  # newest checkpoints to keep
            # Steps that may run while a checkpoint is written; a kill may cost these in addition to
            # `every`. 0: the run waits until the checkpoint is on the disk
            overlap=0,
            # Flush a checkpoint to the disk before it gets its name, so that it survives a power
            # failure; not in a bucket
            fsync=True,
            best_metric="",  # also keep the best by this metric, e.g. eval/dates/exact_match
            best_mode="max",  # max | min
        )
    )

    # What a run does when something goes wrong; see docs/reliability.md
    config.failure = ml_collections.ConfigDict(
        dict(
            # stop | skip: what follows a NaN or infinite loss or gradient
            nonfinite="stop",
            # ignore | skip | rollback (to a checkpoint, then on with other batches): what follows a
            # loss spike, a loss above spike_factor times the median of the last spike_window
            spike="ignore",
            spike_factor=10.0,  # a loss of this many times the median is a spike
            spike_window=64,  # steps whose losses the median is of
            rollback_steps=100,  # the smallest number of steps to go back
            rollback_batches=200,  # batches to skip from there; at least up to that of the spike
            limit=10,  # skipped steps in a row, or rollbacks, after which the run ends
            # Log all stacks after this many seconds without progress (a step, a save, a batch of
            # evaluation); 0: never
            watchdog_seconds=0.0,
            watchdog_ends=False,  # also end the run
            heartbeat_seconds=100,  # end the job if one of its processes is silent for this long
            join_seconds=300,  # refuse a job whose processes do not all connect within this time
        )
    )

    config.eval = ml_collections.ConfigDict(
        dict(
            every=500,  # steps; always after the last; 0: only then
            batch_size=256,  # rows in a batch of an evaluation, over all processes
            # The largest number of batches of each evaluation set, a fixed random sample; 0: all
            batches=0,
            # End the run after this many evaluations in a row without a new best value of
            # checkpoint.best_metric, or else the first set's accuracy (classes) or loss; 0: never
            patience=0,
            # Metrics in addition to the task's. For all: ece (calibration); for generated answers:
            # bleu | chrf | rouge; for classes: macro_f1 | matthews | top5_accuracy; for numeric
            # classes: pearson | spearman; for items: mrr | hit@k | ndcg@k, k: 1, 5, 10, 20, 50, 100
            metrics=(),
            beam_size=1,  # beams; 1: greedy decoding
            length_penalty=0.6,  # of beam search; 0: none, which favours short answers
            samples=8,  # examples and answers to write to samples/; 0: none
            # Tasks of lm-evaluation-harness to score at every evaluation, such as
            # ("hellaswag", "arc_easy"); causal language models only; see docs/evaluate.md
            tasks=(),
            task_path="",  # a directory with YAML files of tasks of your own; all, without `tasks`
            task_limit=0,  # documents to score of each task, the first ones; 0: all
        )
    )
    return config.lock()
