"""A plan as plain data, in sections, and as text."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from planning.collectives import by_kind
from planning.compiled import Compiled, Memory, TooLargeError
from planning.counting import Cost
from planning.roofline import Roofline, roofline
from planning.targets import Target
from training.chips import Chip
from training.finetune import by_name
from training.train_state import TrainState

HOUR = 3600
Section = dict[str, Any]


def of_job(*, device: str, mesh: Mapping[str, int], batch_size: int, assumed) -> Section:
    """Returns the section on the job: devices, mesh, batch size, and assumed sizes."""
    return {
        "device": device,
        "devices": math.prod(mesh.values()),
        "mesh": dict(mesh),
        "batch_size": batch_size,
        "assumed": list(assumed),
    }


def of_parameters(params: Mapping) -> Section:
    """Returns parameter counts by part of the model: the first two names of the path."""
    parts = collections.Counter()
    for name, leaf in by_name(params).items():
        parts["/".join(name.split("/")[:-1][:2])] += leaf.size
    return {"parameters": {"total": parts.total(), "parts": dict(parts)}}


def of_memory(state: TrainState, memory: Memory, chip: Chip | None) -> Section:
    """Returns bytes on one device. "batch" includes the other arguments, such as padding."""
    held = _held(state)
    found = {
        **held,
        "batch": memory.arguments - sum(held.values()),
        "temporaries": memory.temporaries,
        "program": memory.program,
        **({"packing": memory.packing} if memory.packing else {}),
        "total": memory.total,
    }
    return {"memory": found | _against(memory.total, chip)}


def too_large(state: TrainState, error: TooLargeError, chip: Chip | None) -> Section:
    """Returns the memory section if the compiler failed, from the needs that it stated."""
    found = _held(state)
    total = error.total
    if error.temporaries:
        total = sum(found.values()) + error.temporaries
        found["temporaries"] = error.temporaries
    return {"memory": {**found, "total": total, **_against(total, chip), "fits": False}}


def _held(state: TrainState) -> dict[str, int]:
    counts = state.step, state.anomalies  # a few numbers
    held = {
        "parameters": _bytes(state.params),
        "optimizer": _bytes((state.opt_state, counts)),
    }
    return held | ({"average": _bytes(state.ema)} if state.ema is not None else {})


def _bytes(tree) -> int:
    """Returns the bytes on each device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _against(total: int, chip: Chip | None) -> Section:
    if chip is None:
        return {"capacity": None, "fits": None}
    return {"capacity": int(chip.memory), "fits": total <= chip.memory}


def of_cost(program: Compiled, model_flops: float, devices: int) -> Section:
    """Returns FLOPs of all devices together, and bytes and collectives of each device."""
    cost = program.cost
    compiled = cost.flops * devices
    collectives = [dataclasses.asdict(each) for each in by_kind(cost.collectives).values()]
    return {
        "flops": {
            "model": model_flops,
            "compiled": compiled,
            "in_kernels": cost.kernel_flops * devices,
            "in_8_bits": cost.narrow_flops * devices,
            "ratio": compiled / model_flops,
        },
        "serial_depth": program.serial_depth,
        "bytes_moved": cost.bytes,
        "collectives": collectives,
        "uncounted": list(dict.fromkeys(cost.unknown)),
    }


def of_time(
    cost: Cost, model_flops: float, target: Target, per_step: Mapping[str, int], steps: int
) -> Section:
    """Returns roofline time of a step, MFU and rates; `per_step` counts tokens or images."""
    found = roofline(cost, target.peak_flops, target.chip)
    devices, seconds = len(target.devices), found.seconds
    return {
        "time": {
            **_seconds(found),
            "mfu": model_flops / (seconds * devices * target.peak_flops),
            **{f"{unit}_per_second": count / seconds for unit, count in per_step.items()},
            "days": steps * seconds / (24 * HOUR),
            "chip_hours": steps * seconds * devices / HOUR,
            "steps": steps,
        }
    }


def of_generation(reads: Compiled, writes: Compiled, target: Target, rows: int) -> Section:
    """Returns the cost of reading the prompts, and of generating one token in each row."""
    found = {}
    for name, compiled in {"reading": reads, "writing": writes}.items():
        found[name] = {
            "memory": compiled.memory.total,
            **_against(compiled.memory.total, target.chip),
            "flops": compiled.cost.flops * len(target.devices),
            "bytes_moved": compiled.cost.bytes,
        }
        if target.chip is not None:
            time = roofline(compiled.cost, target.peak_flops, target.chip)
            found[name] |= _seconds(time)
    if target.chip is not None:
        found["writing"]["tokens_per_second"] = rows / found["writing"]["seconds"]
    return {"generation": found}


def _seconds(found: Roofline) -> Section:
    return {**dataclasses.asdict(found), "seconds": found.seconds, "bound_by": found.bound_by}


def rank(found: Section) -> tuple[bool, float]:
    """Returns a sort key: plans that fit first, then by time, or by memory without a time."""
    time = found.get("time", {}).get("seconds", found["memory"]["total"])
    return found["memory"]["fits"] is False, time


def mesh_name(sizes: Mapping[str, int]) -> str:
    """Names a mesh by its axes that are larger than 1."""
    used = [f"{axis} {size}" for axis, size in sizes.items() if size > 1]
    return " x ".join(used) or "one device"


def table(plans: Sequence[Section]) -> str:
    """Returns a table with a line for each mesh."""
    rows = [("mesh", "memory", "fits", "step", "bound by", "MFU")]
    for found in plans:
        memory, time = found["memory"], found.get("time")
        fits = {True: "yes", False: "no", None: "?"}[memory["fits"]]
        row = mesh_name(found["mesh"]), gib(memory["total"]) if memory["total"] else "?", fits
        if time is None:
            rows.append((*row, "", "", ""))
        else:
            step = f"{1e3 * time['seconds']:,.1f} ms"
            rows.append((*row, step, time["bound_by"], f"{time['mfu']:.1%}"))
    return _aligned(rows)


def text(found: Section) -> str:
    """Formats a plan for reading."""
    lines = [
        f"{found['device']}: {found['devices']} devices, {mesh_name(found['mesh'])}; "
        f"batch of {found['batch_size']:,} rows"
    ]
    lines += [f"assumed: {', '.join(found['assumed'])}"] if found["assumed"] else []
    lines += ["", *_parameter_lines(found["parameters"]), "", *_memory_lines(found["memory"])]
    if "flops" in found:
        lines += ["", *_cost_lines(found)]
    if "time" in found:
        lines += ["", *_time_lines(found["time"])]
    if "generation" in found:
        lines += ["", *_generation_lines(found["generation"])]
    lines += [f"not counted: {what}" for what in found.get("uncounted", ())]
    return "\n".join(lines)


def _parameter_lines(found: Section) -> list[str]:
    rows = [(part, f"{count:,}") for part, count in found["parts"].items()]
    return _aligned([("parameters", f"{found['total']:,}"), *_indented(rows)]).splitlines()


def _memory_lines(found: Section) -> list[str]:
    keys = ("parameters", "optimizer", "average", "batch", "temporaries", "program", "packing")
    total = gib(found["total"]) if found["total"] else "more than there is"
    rows = [(key, gib(found[key])) for key in keys if key in found]
    lines = _aligned([("memory of each device", total), *_indented(rows)]).splitlines()
    if found["fits"] is None:
        return lines
    share = f"{found['total'] / found['capacity']:.0%} of {gib(found['capacity'])}"
    if found["fits"]:
        return [*lines, f"fits: {share}"]
    over = found["total"] - found["capacity"]
    # The compiler reserves part of a chip's memory.
    what = f"{gib(over)} too much" if over > 0 else "too much for the compiler"
    return [*lines, f"DOES NOT FIT: {share}, {what}" if found["total"] else "DOES NOT FIT"]


def _cost_lines(found: Section) -> list[str]:
    flops = found["flops"]
    rows = [
        ("FLOPs of the model, a step", number(flops["model"])),
        ("FLOPs as compiled", f"{number(flops['compiled'])}, {flops['ratio']:.2f} of the model's"),
    ]
    if flops["in_kernels"]:
        rows.append(("  of them in attention kernels", number(flops["in_kernels"])))
    if flops["in_8_bits"]:
        rows.append(("  of them in 8 bits", number(flops["in_8_bits"])))
    rows.append(("serial depth", f"{found['serial_depth']:,}"))
    rows.append(("memory traffic of each device", gib(found["bytes_moved"])))
    for each in found["collectives"]:
        name = f"{each['kind']} of {each['group']}" if each["group"] > 1 else each["kind"]
        times = "once" if each["count"] == 1 else f"{each['count']:,.0f} times"
        rows.append((f"{name}, {times}", gib(each["bytes"])))
    return _aligned(rows, left=2).splitlines()


def _time_lines(found: Section) -> list[str]:
    rows = [
        (f"  {name}", f"{1e3 * found[name]:,.2f} ms")
        for name in ("compute", "memory", "interconnect")
    ]
    step = f"{1e3 * found['seconds']:,.2f} ms"
    rates = [
        f"{found[key]:,.0f} {unit}/s"
        for unit in ("tokens", "images", "examples")
        if (key := f"{unit}_per_second") in found
    ]
    return [
        *_aligned([("roofline time of a step", step), *rows]).splitlines(),
        f"bound by {found['bound_by']}: MFU {found['mfu']:.1%}, {', '.join(rates)}",
        f"{found['steps']:,} steps: {found['days']:,.2f} days, "
        f"{found['chip_hours']:,.0f} chip-hours",
    ]


def _generation_lines(found: Section) -> list[str]:
    rows = []
    for name, each in found.items():
        rows.append((f"{name}: memory of each device", gib(each["memory"])))
        rows.append(("  memory traffic", gib(each["bytes_moved"])))
        if "seconds" in each:
            what = "roofline, all prompts" if name == "reading" else "roofline, a token in each row"
            time = f"{1e3 * each['seconds']:,.2f} ms, bound by {each['bound_by']}"
            rows.append((f"  {what}", time))
    if "tokens_per_second" in found["writing"]:
        rows.append(("  tokens/s", f"{found['writing']['tokens_per_second']:,.0f}"))
    return _aligned(rows, left=2).splitlines()


def _indented(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"  {first}", *rest) for first, *rest in rows]


def _aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligns columns: the first `left` ones to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def gib(size: float) -> str:
    """Formats a number of bytes in KiB, MiB or GiB."""
    if size >= 2**30:
        return f"{size / 2**30:,.2f} GiB"
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.1f} KiB"


def number(value: float) -> str:
    """Formats a number with three digits and an SI prefix."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000:
            return f"{value:.3g} {prefix}".rstrip()
        value /= 1000
    return f"{value:,.3g} E"
