"""launch/restart.sh: which exit codes start a run again, and how signals pass through it."""

import re
import signal

import pytest

from tests.scripts import ROOT

FINAL = (2, 65, 69, 126, 127, 130)
REPEATED = (1, 70, 71, 74, 75, 134, 143, 137)


@pytest.fixture
def restart(stand_ins):
    """Runs restart.sh with a command that ends with these codes, one after the other."""

    def run(*codes: int, **variables: str):
        stand_ins.plan_codes(*codes)
        return stand_ins.run(ROOT / "launch/restart.sh", "srun", "train.py", "a b", **variables)

    return run


def test_every_exit_code_of_the_docs_is_here():
    text = (ROOT / "docs/reliability.md").read_text().partition("## Exit codes")[2]
    stated = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)}
    assert stated == {0, *FINAL, *REPEATED} - {126, 127, 137}  # those of a shell
    again, never = re.search(
        r"again after ([\d,\sand]+), but not after ([\d,\sor]+):", text
    ).groups()
    assert set(map(int, re.findall(r"\d+", again))) == set(REPEATED) & stated
    assert set(map(int, re.findall(r"\d+", never))) == {0, *FINAL} & stated


@pytest.mark.parametrize("code", FINAL)
def test_what_a_restart_does_not_mend_is_not_repeated(restart, stand_ins, code):
    ended = restart(code, 0)
    assert ended.returncode == code
    assert len(stand_ins.calls("srun")) == 1
    assert f"ended with code {code}, which a restart does not mend" in ended.stderr


@pytest.mark.parametrize("code", REPEATED)
def test_the_same_command_is_repeated_until_it_is_done(restart, stand_ins, code):
    ended = restart(code, code, 0, 1)
    assert ended.returncode == 0
    assert stand_ins.calls("srun") == [["train.py", "a b"]] * 3


def test_it_gives_up_after_many_early_ends_in_a_row(restart, stand_ins):
    ended = restart(*[134] * 9, MAX_RESTARTS="3")
    assert ended.returncode == 134
    assert len(stand_ins.calls("srun")) == 4
    assert "gave up after 3 restarts in a row" in ended.stderr


def test_a_run_that_was_saved_or_lasted_long_is_no_early_end(restart, stand_ins):
    assert restart(*[75] * 5, 0, MAX_RESTARTS="1").returncode == 0
    # With 0 seconds, every run lasts long enough.
    assert restart(*[134] * 5, 0, MAX_RESTARTS="1", RESET_SECONDS="0").returncode == 0


def test_a_command_that_does_not_exist_is_not_repeated(stand_ins):
    ended = stand_ins.run(ROOT / "launch/restart.sh", "no-such-command")
    assert ended.returncode == 127
    assert ended.stderr.count("no-such-command") == 1
    assert stand_ins.run(ROOT / "launch/restart.sh").returncode == 2


SAVES = """
import signal, sys, time
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append("SIGTERM"))
signal.signal(signal.SIGINT, lambda *_: stops.append("SIGINT"))
print("begun", flush=True)
while not stops:
    time.sleep(0.01)
time.sleep(0.3)  # to save
print(*stops, flush=True)
sys.exit(75)
"""


@pytest.mark.parametrize(
    ("stop", "passed_on"),
    [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGHUP", "SIGTERM")],  # the terminal is gone
)
def test_a_signal_is_passed_on_once_and_ends_the_restarts(stand_ins, stop, passed_on):
    with stand_ins.start(ROOT / "launch/restart.sh", "python3", "-IS", "-c", SAVES) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.Signals[stop])
        assert process.stdout.read() == f"{passed_on}\n"
        assert process.wait(timeout=30) == 75


def test_a_signal_during_the_pause_ends_it_at_once(stand_ins):
    stand_ins.plan_codes(134)
    command = ROOT / "launch/restart.sh", "srun"
    with stand_ins.start(*command, RESTART_SECONDS="600") as process:
        assert "starting again in 600 s" in process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=30) == 143


def test_a_command_that_is_killed_is_started_again(stand_ins, tmp_path):
    """kill -9 of the command, as the kernel does when memory is short."""
    once = f"[ -e {tmp_path}/killed ] || {{ touch {tmp_path}/killed; kill -9 $$; }}; echo done"
    ended = stand_ins.run(ROOT / "launch/restart.sh", "bash", "-c", once)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert "ended with code 137" in ended.stderr
