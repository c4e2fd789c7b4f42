"""Scores of lm-evaluation-harness (`lm_eval`), so that they compare with those of other models.

The harness makes prompts, and asks for log-likelihoods of texts and for generated texts. It drives
any causal language model here as it drives transformers: the same ids, the same windows of long
texts, the same truncation.
"""

import dataclasses
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiment.schema import ConfigError, did_you_mean
from inference import output_text, sampling_options
from inference.conversation import chat_format_of
from inference.prompts import bucket, in_batches
from inference.sampler import Sampler
from input_pipeline.rows import Fields
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from training.compilation import compiler_options
from training.mesh import put_batch
from training.model_for_task import forward

if TYPE_CHECKING:
    from checkpointing.loaded_run import LoadedRun

INSTALL = "pip install -e '.[lm-eval]'"
MAX_NEW_TOKENS = 256  # the harness's default for transformers


@dataclasses.dataclass(frozen=True)
class LoadedTasks:
    """Tasks of the harness whose documents have been read."""

    manager: Any  # the harness's TaskManager
    tasks: tuple[Any, ...]  # its tasks and groups of tasks

    @property
    def metric_names(self) -> list[str]:
        """eval/<task>/<metric>, for each task outside groups."""
        return [
            f"eval/{task.task_name}/{_metric_name(metric, filters['name'])}"
            for task in self.tasks
            if hasattr(task, "aggregation") and hasattr(task, "task_name")
            for filters in task.config.filter_list or ({"name": "none"},)
            for metric in task.aggregation()
        ]


def load_tasks(names: Sequence[str], path: str, *, flags: tuple[str, str]) -> LoadedTasks:
    """Reads tasks by name; without names, all tasks of the directory `path`.

    `path` adds tasks to those of the harness. `flags`: what named both, for error messages.
    """
    names_flag, path_flag = flags
    if path and not Path(path).is_dir():
        raise ConfigError(f"{path_flag}={path} is no directory")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=path or None, include_defaults=bool(names))
    if not names and not manager.all_subtasks:
        raise ConfigError(f"{path_flag}={path} has no YAML file of a task")
    refuse_unknown(names, manager.all_tasks, flags)
    tasks: list[Any] = []
    for name in names or manager.all_subtasks:
        try:
            found = manager.load([name])
        except Exception as error:  # whatever reads its documents: files, the network, its code
            raise ConfigError(f"{names_flag}: {name} cannot be loaded: {error}") from error
        groups = found.get("groups", {})
        tasks += [groups[name]] if name in groups else found["tasks"].values()
    return LoadedTasks(manager, tuple(tasks))


class TaskScorer:
    """Scores a model on tasks, also again with other parameters. It compiles once per shape."""

    def __init__(
        self,
        model: "LoadedRun",
        tasks: LoadedTasks,
        *,
        batch_size: int,
        num_fewshot: int | None = None,
        limit: int | None = None,
        chat: bool = False,
    ):
        """`num_fewshot`: examples in each prompt; None: as the task says.

        `limit`: documents of each task; None: all. `chat`: prompts get the chat template.
        """
        self._model, self._tasks = make_harness_model(model, batch_size), tasks
        self._settings = dict(num_fewshot=num_fewshot, limit=limit, apply_chat_template=chat)

    def __call__(self, params: dict, between: Callable[[], None] | None = None) -> dict[str, Any]:
        """The scores of the parameters, as eval/<task>/<metric>, with facts of the evaluation.

        It calls `between` before each batch.
        """
        import lm_eval

        self._model.use(params, between)
        try:
            found = lm_eval.simple_evaluate(
                self._model,
                tasks=list(self._tasks.tasks),
                task_manager=self._tasks.manager,
                log_samples=False,
                bootstrap_iters=0,  # standard errors of means need no resampling
                **self._settings,
            )
        finally:
            self._model.use(None, None)
        counts = {task: count["effective"] for task, count in found.get("n-samples", {}).items()}
        versions = {task: str(version) for task, version in found["versions"].items()}
        return {
            "rows": counts,
            **dict(_scores(found["results"])),
            "signatures": {"lm_eval": importlib.metadata.version("lm_eval"), **versions},
            "num_fewshot": found["n-shot"],
        }

    def scores(self, params: dict, between: Callable[[], None] | None = None) -> dict[str, float]:
        """The scores alone."""
        found = self(params, between)
        return {name: value for name, value in found.items() if name.startswith("eval/")}


def _scores(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for task, values in results.items():
        for name, value in values.items():
            if isinstance(value, int | float) and name not in ("sample_len", "sample_count"):
                yield f"eval/{task}/{_metric_name(*name.split(',', 1))}", float(value)


def _metric_name(metric: str, filter_name: str = "none") -> str:
    return metric if filter_name == "none" else f"{metric},{filter_name}"


def refuse_missing(flag: str) -> None:
    """Raises ConfigError if the harness is not installed; `flag` is what needs it."""
    if not importlib.util.find_spec("lm_eval"):
        raise ConfigError(f"{flag} needs lm-evaluation-harness; install it: {INSTALL}")


def refuse_unfit(model: "LoadedRun") -> None:
    """Raises ConfigError for a model that does not continue text."""
    task = model.experiment.task
    if not task.objective_spec.is_causal:
        raise ConfigError(
            f"--tasks needs a causal language model, and this one has task.objective="
            f"{task.objective}; leave --tasks out"
        )
    if isinstance(model.tokenizer, IdTokenizer):
        raise ConfigError("--tasks needs text, and this model came without a tokenizer")


def refuse_unknown(tasks: Sequence[str], known: Sequence[str], flags: tuple[str, str]) -> None:
    """Raises ConfigError for a task that the harness does not have; `known` are those it has.

    `flags`: what named the tasks, and what names a directory of more.
    """
    for task in tasks:
        if task not in known:
            raise ConfigError(
                f"{flags[0]}: {task!r} is not a task of lm_eval.{did_you_mean(task, known)} "
                f"`lm_eval ls tasks` lists them; {flags[1]}=DIR adds tasks of your own"
            )


class TextScorer:
    """Log-probabilities of ids after other ids, in batches of similar lengths."""

    def __init__(self, model: "LoadedRun", batch_size: int):
        self._model, self._batch_size = model, batch_size
        self.params: dict | None = model.params
        self.between: Callable[[], None] | None = None  # called before each batch
        task = model.experiment.task

        def score(params, batch):
            logits_btv = forward(model.model, task, params, batch)["logits"].astype(jnp.float32)
            log_probs_btv = jax.nn.log_softmax(logits_btv)
            targets_bt, counts_bt = batch["targets"], batch["weights"] > 0
            found_bt = jnp.take_along_axis(log_probs_btv, targets_bt[..., None], axis=-1)[..., 0]
            is_top_bt = jnp.argmax(logits_btv, axis=-1).astype(jnp.int32) == targets_bt
            total_b = jnp.where(counts_bt, found_bt, 0).sum(axis=1)
            return total_b, (is_top_bt | ~counts_bt).all(axis=1)

        self._score = jax.jit(score, compiler_options=compiler_options())

    def __call__(self, rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """For each row (ids, count): the log-probability of its last `count` ids, and whether each
        of these is the likeliest. A row needs at least one id before them.
        """
        groups: dict[int, list[int]] = {}
        for number, (ids, _) in enumerate(rows):
            groups.setdefault(bucket(len(ids) - 1), []).append(number)
        found: list[tuple[float, bool]] = [(0.0, True)] * len(rows)
        for length, numbers in sorted(groups.items(), reverse=True):
            for start in range(0, len(numbers), self._batch_size):
                if self.between:
                    self.between()
                chosen = numbers[start : start + self._batch_size]
                batch = self._batch([rows[number] for number in chosen], length)
                placed = put_batch(batch, self._model.mesh)
                scores = jax.device_get(self._score(self.params, placed))
                for number, total, is_top in zip(chosen, *scores, strict=False):
                    found[number] = float(total), bool(is_top)
        return found

    def _batch(self, rows: Sequence[tuple[list[int], int]], length: int) -> dict[str, np.ndarray]:
        """Rows of equal length. No token attends to the padding after it."""
        shape = self._batch_size, length
        batch = {name: np.zeros(shape, np.int32) for name in ("inputs", "targets")}
        batch["weights"] = np.zeros(shape, np.float32)
        for row, (ids, count) in enumerate(rows):
            size = len(ids) - 1
            batch["inputs"][row, :size], batch["targets"][row, :size] = ids[:-1], ids[1:]
            batch["weights"][row, size - count : size] = 1
        return batch


class TruncatedPrompts:
    """The ids of prompts: the last `room` of each."""

    unknown: Mapping[str, str] = {}

    def __init__(self, encode, room: int):
        self._encode, self._room = encode, room

    def __call__(self, text: str, name: str) -> Fields:
        del name
        return {"inputs": np.array(self._encode(text)[-self._room :], np.int32)}


def make_harness_model(model: "LoadedRun", batch_size: int):
    """The model as the harness drives it, an `lm_eval.api.model.LM`."""
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM

    tokenizer, scorer = model.tokenizer, TextScorer(model, batch_size)
    names = getattr(tokenizer, "role_names", {})

    class HarnessModel(TemplateLM):
        backend = "causal"
        tokenizer_name = tokenizer.digest
        max_length = model.model_config.max_length
        eot_token_id = tokenizer.eos_id
        # As for transformers: bos, or else eos, precedes a text without context.
        prefix_token_id = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id

        def __init__(self):
            super().__init__()
            self._samplers: dict[str, Sampler] = {}  # by the settings of a task

        def use(self, params, between):
            """Sets the parameters, None to free copies, and what to call before each batch."""
            scorer.params, scorer.between = params, between
            for sampler in self._samplers.values():
                sampler.use(params)

        def tok_encode(self, string, add_special_tokens=None, **kwargs):
            del kwargs
            ids = tokenizer.encode(string).tolist()
            has_bos = ids[:1] == [self.prefix_token_id] and string.startswith(names.get("bos", ""))
            if add_special_tokens is False or (add_special_tokens is None and has_bos):
                return ids
            return [*tokenizer.causal_prefix, *ids]

        def _loglikelihood_tokens(self, requests, disable_tqdm=False, **kwargs):
            del disable_tqdm, kwargs
            rows = [
                ((before + after)[-(self.max_length + 1) :], len(after))
                for _, before, after in requests
            ]
            found = scorer(rows)
            for (text, _, _), answer in zip(requests, found, strict=True):
                if text is not None:
                    self.cache_hook.add_partial("loglikelihood", text, answer)
            return found

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            windows = []
            for number, request in enumerate(requests):
                ids = self.tok_encode(request.args[0])
                rolling = utils.get_rolling_token_windows(
                    ids, self.prefix_token_id, self.max_length, context_len=1
                )
                windows += [(number, *utils.make_disjoint_window(pair)) for pair in rolling]
            totals = [0.0] * len(requests)
            found = self._loglikelihood_tokens([(None, *window[1:]) for window in windows])
            for (number, _, _), (score, _) in zip(windows, found, strict=True):
                totals[number] += score
            return totals

        def generate_until(self, requests, disable_tqdm=False):
            texts: list[str] = [""] * len(requests)
            groups: dict[str, list[int]] = {}
            for number, request in enumerate(requests):
                groups.setdefault(repr(request.args[1]), []).append(number)
            for numbers in groups.values():
                chosen = [requests[number].args for number in numbers]
                found = self._generate([context for context, _ in chosen], chosen[0][1])
                for number, text in zip(numbers, found, strict=True):
                    texts[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
            return texts

        def _generate(self, contexts, settings):
            stops, most, options = generation_options(settings)
            key = repr(settings)
            if key not in self._samplers:
                self._samplers[key] = Sampler(
                    dataclasses.replace(model, params=scorer.params),
                    sampling_options.from_flags({**options, "max_new_tokens": most, "stop": stops}),
                    batch_size,
                    tokenizer,
                    prompts=TruncatedPrompts(self.tok_encode, max(1, self.max_length - most)),
                )
            sampler = self._samplers[key]
            rows = [sampler.prompt(context, "a prompt") for context in contexts]
            found = [""] * len(rows)
            for numbers, batch in in_batches(rows, batch_size, sampler.max_prompt_length):
                if scorer.between:
                    scorer.between()
                for number, ids in zip(numbers, sampler.output_ids(batch, numbers), strict=True):
                    found[number] = output_text.cut(tokenizer.decode(ids), stops)
            return found

        def chat_template(self, chat_template=False):
            return chat_format_of(model).template.source if chat_template else ""

        def apply_chat_template(self, chat_history, add_generation_prompt=True):
            return chat_format_of(model).text(
                chat_history, add_generation_prompt=add_generation_prompt
            )

    return HarnessModel()


def generation_options(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], int, dict[str, Any]]:
    """(stop texts, most tokens, sampling options) of a task's generation settings."""
    settings = dict(settings)
    stops = settings.pop("until", ())
    stops = (stops,) if isinstance(stops, str) else tuple(stops or ())
    names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
    given = [settings.pop(name, None) for name in names]
    most = next((int(each) for each in given if each is not None), MAX_NEW_TOKENS)
    temperature = float(settings.pop("temperature", 0.0) or 0.0)
    samples = settings.pop("do_sample", temperature > 0) and temperature > 0
    options: dict[str, Any] = {}
    if samples:
        options = {"method": "sample", "temperature": temperature}
        options |= {
            key: settings.pop(key) for key in ("top_k", "top_p", "min_p") if key in settings
        }
    ignored = sorted(key for key in settings if settings[key] is not None)
    if ignored and samples:
        raise ConfigError(f"a task sets {', '.join(ignored)}, which generation does not support")
    return tuple(stop for stop in stops if stop), most, options
