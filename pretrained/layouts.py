"""Maps our parameters to published tensors and back, by reshaping and transposing only.

A table maps our modules to theirs. Our `kernel`, `scale` and `embedding` are their `weight`; our
`bias` is their `bias`. Their kernels are transposed, and ours may have an axis for heads. They have
one tensor per layer and expert, and ours are stacked. `At` describes other differences.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}
BLOCKS, LAYER = "blocks", "{layer}"
EXPERTS, EXPERT = "experts", "{expert}"  # a name without the latter: of all experts

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class At:
    """A module of theirs whose tensors do not have the usual layout."""

    name: str
    # What their names have in place of .weight and .bias: gate_up_proj_bias is the bias of
    # gate_up_proj.
    endings: tuple[str, str] | None = None
    is_tensor: bool = False  # `name` is the name of a tensor, not of a module
    untransposed: bool = False  # their kernel is (inputs, outputs), as ours
    part: tuple[int, int] = (0, 1)  # our part of their outputs; (2, 3): the last of three
    heads: tuple[int, int] | None = None  # (first, total): our heads among those of their outputs
    # (groups, first, total): their outputs are `groups` times `total` heads, and ours start with
    # number `first` of each group. As in GPT-NeoX: query, key and value of a head, then of the next
    by_group: tuple[int, int, int] | None = None
    # (first, total): their columns are those of several modules in turns. As in gpt-oss: gate, in.
    in_turns: tuple[int, int] | None = None
    interleaved: bool = False  # their RoPE pairs columns 2i and 2i + 1, ours i and i + K/2
    flat: bool = False  # their tensor has one axis
    from_layer: int = 0  # the first layer that has it
    rows_before: int = 0  # unused rows at the start of their tensor
    leading_ones: int = 0  # leading axes of size 1 in their tensor
    patch: tuple[int, int, int] | None = None  # a convolution over patches: rows, columns, channels


ModuleTable = Mapping[str, str | At]


def below(ours: str, theirs: str, modules: ModuleTable) -> dict[str, str | At]:
    """The table of modules that are inside the module `ours`, or `theirs` in their names."""

    def inside(entry: str | At) -> str | At:
        if isinstance(entry, str):
            return f"{theirs}.{entry}"
        return dataclasses.replace(entry, name=f"{theirs}.{entry.name}")

    return {f"{ours}/{name}": inside(entry) for name, entry in modules.items()}


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """How our array, reshaped to `view`, is stored in a tensor of theirs.

    `groups` lists, for each of their axes, the axes of the view that it combines, slowest first.
    Along `axis`, their tensor may be longer than ours, which then begins at `start`.
    """

    shape: tuple[int, ...]  # ours
    view: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    axis: int = 0
    start: int = 0
    total: int = 0  # their size along `axis`; 0: the same as ours
    # (axis of the view, start, size): an axis that is longer in their tensor, inside a group.
    inner: tuple[int, int, int] | None = None

    @property
    def their_shape(self) -> tuple[int, ...]:
        view = self._their_view
        sizes = [math.prod(view[axis] for axis in group) for group in self.groups]
        if self.total:
            sizes[self.axis] = self.total
        return tuple(sizes)

    @property
    def _their_view(self) -> tuple[int, ...]:
        view = list(self.view)
        if self.inner:
            view[self.inner[0]] = self.inner[2]
        return tuple(view)

    def _inner_part(self) -> tuple[slice, ...]:
        """Our part of their tensor, in the shape of the view."""
        part = [slice(None)] * len(self.view)
        if self.inner:
            axis, start, _ = self.inner
            part[axis] = slice(start, start + self.view[axis])
        return tuple(part)

    def read(self, read: Callable[[Index], np.ndarray], index: Index) -> np.ndarray:
        """Our array at `index`. `read` reads a part of their tensor; only needed parts are read."""
        if self.view != self.shape:  # several of their axes form one of ours: index last
            return self.read_view(read, _all_of(self.view)).reshape(self.shape)[index]
        return self.read_view(read, index)

    def read_view(self, read: Callable[[Index], np.ndarray], index: Index) -> np.ndarray:
        """Our array, in the shape of the view, at `index`."""
        axes = [axis for group in self.groups for axis in group]
        if self.inner:
            tensor = read(_all_of(self.their_shape))
            sizes = [self._their_view[axis] for axis in axes]
            return tensor.reshape(sizes).transpose(np.argsort(axes))[self._inner_part()][index]
        wanted, remaining, sizes = [], [slice(None)] * len(self.view), []
        for their_axis, group in enumerate(self.groups):
            shift = self.start if self.total and their_axis == self.axis else 0
            size = math.prod(self.view[axis] for axis in group)
            first, stop = 0, size
            sizes += [self.view[axis] for axis in group]
            if group and all(_is_all(index[axis], self.view[axis]) for axis in group[1:]):
                # A range of the slowest axis is a contiguous range of their axis.
                begin, end, _ = index[group[0]].indices(self.view[group[0]])
                each = size // self.view[group[0]]
                first, stop = begin * each, end * each
                sizes[-len(group)] = end - begin
            else:
                for axis in group:
                    remaining[axis] = index[axis]
            wanted.append(slice(first + shift, stop + shift))
        return read(tuple(wanted)).reshape(sizes).transpose(np.argsort(axes))[tuple(remaining)]

    def write(self, array: np.ndarray) -> np.ndarray:
        """Our array in the layout of their tensor."""
        axes = [axis for group in self.groups for axis in group]
        sizes = [math.prod(self.view[axis] for axis in group) for group in self.groups]
        return array.reshape(self.view).transpose(axes).reshape(sizes)

    def place(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Copies our array to its place in their tensor."""
        if self.inner:
            axes = [axis for group in self.groups for axis in group]
            parts = tensor.reshape([self._their_view[axis] for axis in axes])
            view = parts.transpose(np.argsort(axes))
            view[self._inner_part()] = array.reshape(self.view)
            return
        part = [slice(None)] * tensor.ndim
        if self.total:
            part[self.axis] = slice(self.start, self.start + self.write(array).shape[self.axis])
        tensor[tuple(part)] = self.write(array)


@dataclasses.dataclass(frozen=True)
class Place:
    """One tensor of theirs, and the parameter of ours that it contains, or a part of it.

    The name is "" if they have no such tensor, because our layers have more parameters.
    """

    path: str
    stacked: tuple[int, ...]  # the layer, or the layer and the expert; (): the whole parameter
    name: str
    layout: TensorLayout


def places(shapes: Mapping[str, tuple[int, ...]], table: ModuleTable) -> Iterator[Place]:
    """Yields the places of our parameters; `shapes` are by path: backbone/encoder/.../kernel."""
    for path, shape in shapes.items():
        module, _, leaf = path.rpartition("/")
        at = table[module]
        at = At(at) if isinstance(at, str) else at
        name = at.name if at.is_tensor else f"{at.name}.{LEAVES[leaf]}"
        if at.endings:
            name = at.name + at.endings[leaf == "bias"]
        names = [LAYER] * (BLOCKS in module.split("/")) + [EXPERT] * (EXPERT in name)
        where = layout(at, path, tuple(shape[len(names) :]))
        for stacked in np.ndindex(*shape[: len(names)]):
            full_name = name
            for part, number in zip(names, stacked, strict=True):
                full_name = full_name.replace(part, str(number))
            is_theirs = not stacked or stacked[0] >= at.from_layer
            yield Place(path, stacked, full_name if is_theirs else "", where)


def layout(at: At, path: str, shape: tuple[int, ...]) -> TensorLayout:
    """The layout of our parameter, without the axis of layers, in a module of theirs."""
    axes = tuple(range(len(shape)))
    view, axis, start, total = shape, 0, 0, 0
    if EXPERTS in path.split("/") and EXPERT not in at.name:
        return _all_experts(at, shape)
    if at.by_group:
        return _grouped(at, path, shape)
    if at.interleaved:
        return _interleaved(path, shape)
    if at.patch and path.endswith("/kernel"):
        # Their kernel is a convolution: rows, columns and channels of a patch are its inputs.
        view, groups = (*at.patch, shape[-1]), ((3,), (2,), (0,), (1,))
    elif path.endswith("/kernel"):
        # The output projection of attention has two input axes: heads and head size.
        inputs = 2 if path.endswith("_attention/out/kernel") else 1
        groups = (axes[inputs:], axes[:inputs])
        groups = groups[::-1] if at.untransposed else groups
        axis = 1 if at.untransposed else 0
    elif path.endswith("/bias") or at.flat:
        groups = (axes,)
    else:
        groups = tuple((axis,) for axis in axes)
    number, parts = at.part
    if parts > 1:
        size = math.prod(shape[a] for a in groups[axis])
        start, total = number * size, parts * size
    if at.heads:
        first, count = at.heads
        size = math.prod(shape[a] for a in groups[axis][1:])  # of a head
        start, total = first * size, count * size
    if at.rows_before:
        start, total = at.rows_before, at.rows_before + shape[0]
    ones = ((),) * at.leading_ones
    return TensorLayout(shape, view, (*ones, *groups), axis + len(ones), start, total)


def _all_experts(at: At, shape: tuple[int, ...]) -> TensorLayout:
    """The layout of one tensor of all experts, (E, D, F) as ours, or (E, F) for a bias."""
    first, total = at.in_turns or (0, 1)
    last = len(shape)
    groups = (*((axis,) for axis in range(last - 1)), (last - 1, last))
    return TensorLayout(shape, (*shape, 1), groups, inner=(last, first, total))


def _grouped(at: At, path: str, shape: tuple[int, ...]) -> TensorLayout:
    """The layout of heads that alternate with others: (D, H, K), or (H, K) for a bias."""
    groups, first, total = at.by_group
    *width, heads, size = shape
    view = (*width, groups, heads // groups, size)
    own = tuple(range(len(width), len(view)))
    inner = (own[1], first, total)
    return TensorLayout(shape, view, (own, (0,)) if width else (own,), inner=inner)


def _interleaved(path: str, shape: tuple[int, ...]) -> TensorLayout:
    """The layout of heads whose columns are permuted: (D, H, K), or (H, K) for vectors."""
    *width, heads, size = shape
    view = (*width, heads, 2, size // 2)
    head, half, column = range(len(width), len(view))
    if width:
        return TensorLayout(shape, view, ((head, column, half), (0,)))
    if path.endswith("/bias"):
        return TensorLayout(shape, view, ((head, column, half),))
    return TensorLayout(shape, view, ((head,), (column, half)))


def their_shapes(found: Sequence[Place]) -> dict[str, tuple[int, ...]]:
    """The shapes of their tensors, by name."""
    return {place.name: place.layout.their_shape for place in found if place.name}


def to_theirs(found: Sequence[Place], ours: Mapping[str, np.ndarray]) -> Iterator[tuple]:
    """Yields (name, array) for each of their tensors; parts that we have nothing for are zero."""
    by_name: dict[str, list[Place]] = {}
    for place in found:
        if place.name:
            by_name.setdefault(place.name, []).append(place)
    for name, sharing in by_name.items():
        dtype = ours[sharing[0].path].dtype
        tensor = np.zeros(sharing[0].layout.their_shape, dtype)
        for place in sharing:
            array = np.asarray(ours[place.path])
            place.layout.place(array[place.stacked], tensor)
        yield name, tensor


def to_ours(
    shapes: Mapping[str, tuple[int, ...]], table: ModuleTable, weights: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Our parameters by path, and the names of the weights that are not used."""
    ours, unused = {}, set(weights)
    for place in places(shapes, table):
        unused.discard(place.name)
        tensor = weights[place.name]
        array = place.layout.read(tensor.__getitem__, _all_of(place.layout.shape))
        if not place.stacked:
            ours[place.path] = array
        else:
            ours.setdefault(place.path, np.empty(shapes[place.path], array.dtype))
            ours[place.path][place.stacked] = array
    return ours, unused


def _all_of(shape: Sequence[int]) -> Index:
    return tuple(slice(0, size) for size in shape)


def _is_all(index: slice, size: int) -> bool:
    return index.indices(size) == (0, size, 1)
