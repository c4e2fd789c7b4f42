// All heads of a stack, ranked by the weight that one query gives to one key.

const RANKED_HEADS = 8;

// The weights of a pair in every head, largest first, without heads whose mask forbids the pair.
async function headsByWeight(map, query, key) {
  const found = [];
  const place = query * map.columns + key;
  const { values } = map.arrays.weights;
  for (let layer = 0; layer < map.layers.length; layer++) {
    const [codes, mask] = await Promise.all([map.arrays.weights.codes(layer), map.mask(layer)]);
    if (!mask[place]) continue;
    for (let head = 0; head < map.heads; head++) {
      const weight = values[codes[head * map.rows * map.columns + place]];
      found.push({ layer, head, weight });
    }
  }
  return found.sort((a, b) => b.weight - a.weight);
}

// A line of buttons below the token view's sentence. The other token of the pair is chosen here.
function pairRanking() {
  const field = make("div", { class: "controls" });
  const heads = make("p", { class: "ranking" });
  const element = make("div", { class: "pair-ranking" }, field, heads);
  let other = null; // the place of the other token; null: none is chosen

  function build() {
    const map = currentMap();
    const tokens = state.token.side === "query" ? map.keys : map.queries;
    if (other >= tokens.length) other = null;
    const names = tokens.map((token, place) => [
      place,
      `${place} ${shortened(visibleText(token), 24)}`,
    ]);
    const label = state.token.side === "query" ? "Heads by weight on" : "Heads by weight from";
    const pick = (value) => {
      other = value === "" ? null : Number(value);
      update();
    };
    const options = [["", "choose a token"], ...names];
    field.replaceChildren(selectField(label, options, other ?? "", pick).field);
  }

  async function update() {
    heads.hidden = other === null;
    if (other === null) return;
    const map = currentMap();
    const { side, index } = state.token;
    const pair = side === "query" ? [index, other] : [other, index];
    const ranked = await headsByWeight(map, ...pair);
    if (map !== currentMap() || index !== state.token.index) return;
    if (ranked.length === 0) {
      heads.replaceChildren("The mask forbids this pair in every layer.");
      return;
    }
    const shown = ranked.slice(0, RANKED_HEADS).map(({ layer, head, weight }) =>
      make("button", {
        type: "button",
        class: "token-button",
        text: `${map.layers[layer]} · ${head}: ${weight.toFixed(3)}`,
        title: `show ${headName(map, layer, head)}`,
        onclick: () => change({ layer, head, over: "head" }),
      }),
    );
    const rest = make("span", { class: "hint", text: `the first of ${ranked.length} heads` });
    heads.replaceChildren(...shown, rest);
  }

  build();
  update();
  onChange((changed) => {
    if (changed.has("map")) other = null;
    if (!changed.has("map") && !changed.has("token")) return;
    build();
    update();
  });
  return element;
}
