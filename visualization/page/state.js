// What is chosen now. Views listen, and redraw what a change concerns.

const maps = packedData.maps.map((map) => new AttentionData(map));
const hasProducts = maps.some((map) => map.products);

// A weight with the digits that its storage justifies: it is exact to √w / largest code.
function weightText(value) {
  if (value === 0) return "0";
  const error = Math.sqrt(value) / (2 ** packedData.precision.bits - 1);
  return value.toFixed(Math.min(6, Math.ceil(-Math.log10(error))));
}

// The token that tells most: a causal model's last one sees all others.
function usualToken(map) {
  return { side: "query", index: map?.name === "decoder" ? map.rows - 1 : 0 };
}

const state = {
  view: null,
  map: 0,
  layer: 0, // a place among the layers that are shown
  head: 0,
  quantity: "weights", // or "products": weight x gradient
  scale: "root",
  range: "fixed", // 0 to 1, or "head": up to the head's largest value
  token: usualToken(maps[0]), // of the token view
  over: "head", // what the token view shows: "head", "layer" or "all"
};
const listeners = [];

function currentMap() {
  return maps[state.map];
}

function onChange(listener) {
  listeners.push(listener);
}

// Takes over changes and tells the views which parts of the state are new.
function change(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  if (changed.size === 0) return;
  Object.assign(state, changes);
  if (changed.has("map")) {
    const map = currentMap();
    state.layer = Math.min(state.layer, map.layers.length - 1);
    state.head = Math.min(state.head, map.heads - 1);
    if (!map.products) state.quantity = "weights";
    state.token = usualToken(map);
    for (const name of ["layer", "head", "quantity", "token"]) changed.add(name);
  }
  for (const listener of listeners) listener(changed);
}

function headName(map, layer, head) {
  return `Layer ${map.layers[layer]} · head ${head}`;
}

const MAP_NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross attention" };

function mapName(name) {
  return MAP_NAMES[name] ?? name;
}

darkPreference.addEventListener("change", () => listeners.forEach((l) => l(new Set(["theme"]))));

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  listeners.forEach((listener) => listener(new Set(["theme"])));
}
