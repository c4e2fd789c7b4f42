"""Every token mixer by its formula: loops over tokens in float64, one example without padding.

Nothing here knows scans, segments or states. It is the reference for model/mixers.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(params, x):
    return x @ params["kernel"] + params.get("bias", 0.0)


def rnn(params, prefix, x_td, options):
    hidden, found = np.zeros(x_td.shape[1]), []
    for x in x_td:
        hidden = np.tanh(
            dense(params[f"{prefix}in"], x) + dense(params[f"{prefix}recurrent"], hidden)
        )
        found.append(hidden)
    return np.array(found)


def gru(params, prefix, x_td, options):
    hidden, found = np.zeros(x_td.shape[1]), []
    for x in x_td:
        from_x = np.split(dense(params[f"{prefix}in"], x), 3)
        from_h = np.split(dense(params[f"{prefix}recurrent"], hidden), 3)
        reset, update = (sigmoid(from_x[n] + from_h[n]) for n in (0, 1))
        candidate = np.tanh(from_x[2] + reset * from_h[2])
        hidden = (1 - update) * candidate + update * hidden
        found.append(hidden)
    return np.array(found)


def lstm(params, prefix, x_td, options):
    hidden, memory, found = np.zeros(x_td.shape[1]), np.zeros(x_td.shape[1]), []
    for x in x_td:
        gates = dense(params[f"{prefix}in"], x) + dense(params[f"{prefix}recurrent"], hidden)
        enter, forget, candidate, leave = np.split(gates, 4)
        memory = sigmoid(forget + options["forget_bias"]) * memory
        memory = memory + sigmoid(enter) * np.tanh(candidate)
        hidden = sigmoid(leave) * np.tanh(memory)
        found.append(hidden)
    return np.array(found)


CELLS = {"rnn": rnn, "gru": gru, "lstm": lstm}


def conv(params, x_td, options, two_sided):
    taps, dilation = int(options["taps"]), options["dilation"]
    first = -(taps // 2) if two_sided else 1 - taps
    found = []
    for t in range(len(x_td)):
        places = [t + (first + n) * dilation for n in range(taps)]
        window = [x_td[p] if 0 <= p < len(x_td) else np.zeros(x_td.shape[1]) for p in places]
        values, gates = np.split(dense(params["in"], np.concatenate(window)), 2)
        found.append(values * sigmoid(gates))
    return np.array(found)


def mean(params, x_td, two_sided, prefix):
    values = dense(params["in"], x_td)
    last = len(values) - 1
    ends = [last if two_sided else max(t, prefix - 1) for t in range(len(values))]
    return np.array([values[: end + 1].mean(axis=0) for end in ends])


def mixed(name, params, x_td, options, *, two_sided=False, prefix=0):
    """The output (T, D) for one example, whose first `prefix` tokens are read both ways."""
    if name in CELLS:
        y = CELLS[name](params, "", x_td, options)
        if two_sided:
            backwards = CELLS[name](params, "backward_", x_td[::-1], options)[::-1]
            y = np.concatenate([y, backwards], axis=-1)
    elif name == "conv":
        y = conv(params, x_td, options, two_sided)
    else:
        y = mean(params, x_td, two_sided, prefix)
    return dense(params["out"], y)
