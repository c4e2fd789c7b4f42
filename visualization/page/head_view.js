// The first view: all heads beside one head at full size.

const PERCENT = ["previous", "itself", "following", "first", "special"];
const SHARE_NAMES = {
  previous: "previous token",
  itself: "itself",
  following: "next token",
  first: "first token",
  special: "special tokens",
};

function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}%`;
}

// "entropy 1.20 nats · mean distance 2.1 · previous token 71.3%"
function summaryLine(summary) {
  const parts = [`entropy ${decimal(summary.entropy, 2)} nats`];
  if (summary.distance !== null) parts.push(`mean distance ${decimal(summary.distance, 1)}`);
  const known = PERCENT.filter((name) => summary[name] !== null);
  const top = known.sort((a, b) => summary[b] - summary[a])[0];
  if (top) parts.push(`${SHARE_NAMES[top]} ${percent(summary[top])}`);
  return parts.join(" · ");
}

function largestOf(matrix) {
  let largest = 0;
  for (let row = 0; row < matrix.rows; row++) {
    for (let column = 0; column < matrix.columns; column++) {
      largest = Math.max(largest, Math.abs(matrix.at(row, column) ?? 0));
    }
  }
  return largest;
}

function headView() {
  const title = make("h2");
  const labels = make("span", { class: "badges" });
  const line = make("p", { class: "hint" });
  const heat = new HeatMap("weights of one head");
  const large = make(
    "section",
    { class: "panel one-head", "aria-label": "one head" },
    make("div", { class: "panel-title" }, title, labels),
    line,
    heat.element,
  );
  const all = make(
    "section",
    { class: "panel all-heads", "aria-label": "all heads" },
    make("div", { class: "panel-title" }, make("h2", { text: "All heads" })),
    make("p", {
      class: "hint",
      text:
        "Rows are layers, columns are heads. In a tile, queries run down and keys run across. " +
        "Where a tile has fewer pixels than weights, a pixel shows the largest one it covers.",
    }),
    headGrid(),
  );

  async function update() {
    const map = currentMap();
    const { layer, head, quantity, range, scale } = state;
    const [matrix, sums] = await Promise.all([
      map.matrix(layer, head, quantity),
      map.rowSumsOf(layer),
    ]);
    if (map !== currentMap() || layer !== state.layer || head !== state.head) return;
    const summary = map.summary(layer, head);
    title.textContent = headName(map, layer, head);
    const kind = map.kinds[layer];
    labels.replaceChildren(...badges(summary.labels), make("span", { class: "kind", text: kind }));
    line.textContent = summaryLine(summary);
    const { scale: end } = map.arrays[quantity].packed;
    const rowSums = Array.from(sums.subarray(head * map.rows, (head + 1) * map.rows));
    heat.show({
      matrix,
      rowTokens: map.queries,
      columnTokens: map.keys,
      sums: quantity === "weights" ? rowSums.map((steps) => steps / 10000) : null,
      scale,
      largest: range === "head" ? largestOf(matrix) : end,
      format: quantity === "weights" ? weightText : shortNumber,
    });
  }

  update();
  const names = ["map", "layer", "head", "quantity", "scale", "range", "theme"];
  onChange((changed) => names.some((name) => changed.has(name)) && update());
  return make("div", { class: "two-columns" }, all, large);
}
