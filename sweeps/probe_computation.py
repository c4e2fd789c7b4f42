"""Computes probes of a finished run. Existing results for the same checkpoint are kept."""

from collections.abc import Sequence
from pathlib import Path

from checkpointing import run_directory
from experiment.schema import ConfigError
from sweeps.probe_checks import name_problems
from sweeps.probe_results import missing_probes, newest_checkpoint, write_values
from sweeps.probes import PROBES
from sweeps.probes.probe import open_run


def compute_probes(workdir: Path, probes: Sequence[str]) -> list[str]:
    """Computes the probes that are missing, one file for each; returns their names.

    If one fails, the results of those before it are kept.
    """
    if problems := name_problems(probes, ()):
        raise ConfigError(problems)
    if not workdir.is_dir():
        raise ConfigError(f"--run={workdir} is no directory; give the directory of a finished run")
    with run_directory.lock(workdir):
        missing = missing_probes(workdir, probes)
        if not missing:
            return []
        probed, checkpoint = open_run(workdir), newest_checkpoint(workdir)
        for name in missing:
            if reason := PROBES[name].problem(probed.run.experiment):
                raise ConfigError(f"the probe {name} does not fit {workdir}: {reason}")
            write_values(workdir, name, checkpoint, dict(PROBES[name].compute(probed)))
    return missing
