// One token and what it attends to, or what attends to it: lines whose width is the weight.

const ROW = 26; // the height of a token's row, in pixels, as in the style sheet

const OVERS = [
  ["head", "this head"],
  ["layer", "mean of the layer's heads"],
  ["all", "mean of all heads and layers"],
];

// The matrix of the current choice.
function chosenMatrix(map) {
  if (state.over === "layer") return map.meanMatrix([state.layer]);
  if (state.over === "all") return map.meanMatrix(map.layers.map((_, place) => place));
  return map.matrix(state.layer, state.head);
}

function tokenView() {
  const over = make("div", { class: "controls" });
  const sentence = make("p", { class: "hint", "aria-live": "polite" });
  const queries = make("div", { class: "token-list queries" });
  const keys = make("div", { class: "token-list keys" });
  const lines = makeSvg("svg", { class: "token-lines", "aria-hidden": "true" });
  const board = make(
    "div",
    { class: "token-board" },
    make("h3", { text: "queries" }),
    make("span"),
    make("h3", { text: "keys" }),
    queries,
    lines,
    keys,
  );
  let items = { query: [], key: [] };
  let weights = [];

  function build() {
    const map = currentMap();
    const list = (tokens, side, container) => {
      items[side] = tokens.map((token, index) =>
        make(
          "button",
          {
            type: "button",
            class: "token-row",
            onclick: () => change({ token: { side, index } }),
          },
          make("span", { class: "place", text: String(index) }),
          tokenElement(token, 18),
          make("span", { class: "weight" }),
        ),
      );
      const rows = make("div", { class: "token-rows" }, ...items[side]);
      if (tokens.length) moveWithArrows(rows, items[side], 1);
      container.replaceChildren(rows);
    };
    list(map.queries, "query", queries);
    list(map.keys, "key", keys);
    buildOver();
  }

  function buildOver() {
    const { field } = selectField("Weights of", OVERS, state.over, (v) => change({ over: v }));
    over.replaceChildren(field);
  }

  async function update() {
    const map = currentMap();
    const matrix = await chosenMatrix(map);
    if (map !== currentMap()) return;
    const { side, index } = state.token;
    const other = side === "query" ? "key" : "query";
    weights = items[other].map((_, place) =>
      side === "query" ? matrix.at(index, place) : matrix.at(place, index),
    );
    items[side].forEach((item, place) => {
      item.setAttribute("aria-pressed", String(place === index));
      item.classList.remove("masked");
      item.lastChild.textContent = "";
      item.style.removeProperty("--bar");
    });
    items[other].forEach((item, place) => {
      const weight = weights[place];
      item.setAttribute("aria-pressed", "false");
      item.classList.toggle("masked", weight === null);
      item.lastChild.textContent = weight === null ? "masked" : weight.toFixed(3);
      item.style.setProperty("--bar", `${100 * (weight ?? 0)}%`);
    });
    const token = (side === "query" ? map.queries : map.keys)[index];
    const verb = {
      query: " attends to the keys on the right",
      key: " is attended to by the queries on the left",
    }[side];
    const where = {
      head: headName(map, state.layer, state.head).toLowerCase(),
      layer: `layer ${map.layers[state.layer]}, mean of its heads`,
      all: "mean of all heads and layers",
    }[state.over];
    const rest = `${verb} (${where}). Pick any token on either side. Most weight: `;
    const tokens = side === "query" ? map.keys : map.queries;
    sentence.replaceChildren(placedToken(token, index), rest, ...strongest(tokens));
    drawLines();
  }

  // The five tokens with the largest weights, which may be far down the list.
  function strongest(tokens) {
    const order = weights.map((_, place) => place).filter((place) => weights[place] > 0);
    order.sort((a, b) => weights[b] - weights[a]);
    const parts = order.slice(0, 5).map((place, rank) => [
      rank ? ", " : "",
      placedToken(tokens[place], place),
      ` ${weights[place].toFixed(3)}`,
    ]);
    return parts.length ? [...parts.flat(), "."] : ["nowhere."];
  }

  function drawLines() {
    const { side, index } = state.token;
    const width = lines.clientWidth;
    if (width === 0) return;
    lines.setAttribute("height", ROW * Math.max(items.query.length, items.key.length));
    const middle = (place) => (place + 0.5) * ROW;
    const largest = Math.max(...weights.map((weight) => weight ?? 0), 1e-9);
    const paths = weights.map((weight, place) => {
      if (!weight || weight < largest / 200) return null; // too thin to be seen
      const [from, to] = side === "query" ? [index, place] : [place, index];
      const bend = `C ${width / 2} ${middle(from)}, ${width / 2} ${middle(to)},`;
      return makeSvg("path", {
        d: `M 0 ${middle(from)} ${bend} ${width} ${middle(to)}`,
        "stroke-width": (0.5 + 11.5 * weight).toFixed(2),
        "stroke-opacity": (0.25 + 0.65 * Math.sqrt(weight)).toFixed(3),
        "data-weight": weight.toFixed(6),
      });
    });
    lines.replaceChildren(...paths.filter(Boolean));
  }

  build();
  update();
  onWidthChange(board, drawLines);
  onChange((changed) => {
    if (changed.has("map")) build();
    else if (changed.has("over") && !over.contains(document.activeElement)) buildOver();
    const names = ["map", "layer", "head", "token", "over"];
    if (names.some((name) => changed.has(name))) update();
  });
  return make(
    "section",
    { class: "panel", "aria-label": "token view" },
    make("div", { class: "panel-title" }, make("h2", { text: "One token" }), over),
    sentence,
    pairRanking(),
    board,
  );
}
