// Puts the page together.

const VIEWS = [
  { name: "heads", label: "Heads", build: headView, ofMap: true, when: maps.length > 0 },
  { name: "tokens", label: "Tokens", build: tokenView, ofMap: true, when: maps.length > 0 },
  { name: "summaries", label: "Summaries", build: summaryTable, ofMap: true, when: maps.length > 0 },
  { name: "rollout", label: "Rollout", build: rolloutView, ofMap: true, when: maps.some(hasWhole) },
  { name: "image", label: "Image", build: imageView, ofMap: true, when: Boolean(packedData.image) && maps.length > 0 },
  { name: "lens", label: "Logit lens", build: lensView, when: Boolean(packedData.lens) },
  { name: "scores", label: "Probabilities", build: scoreView, when: Boolean(packedData.scores) },
  { name: "norms", label: "Norms", build: normView, when: packedData.norms.length > 0 },
].filter(({ when }) => when);

// Views with layer, head and colour fields.
const WITH_HEAD = new Set(["heads", "tokens", "image"]);

function pageHeader() {
  const facts = packedData.facts.map(([name, value]) =>
    make("div", {}, make("dt", { text: name }), make("dd", {}, make("bdi", { dir: "auto", text: value }))),
  );
  const { bits, largestError, weights } = packedData.precision;
  if (weights > 0) {
    const text = `${bits} bits; a weight w is exact to √w / ${(2 ** bits - 1).toLocaleString("en")}, at most ${largestError.toPrecision(2)}`;
    facts.push(make("div", {}, make("dt", { text: "weights stored with" }), make("dd", { text })));
  }
  const theme = make("button", {
    type: "button",
    class: "theme",
    text: "◐",
    "aria-label": "switch between light and dark",
    title: "switch between light and dark",
    onclick: toggleTheme,
  });
  const prediction = packedData.prediction
    ? make("p", { class: "prediction" }, make("span", { class: "hint", text: "prediction" }), make("bdi", { dir: "auto", text: packedData.prediction }))
    : null;
  return make(
    "header",
    {},
    make("div", { class: "title-line" }, make("h1", {}, make("bdi", { dir: "auto", text: packedData.title })), theme),
    prediction,
    make("dl", { class: "facts" }, ...facts),
  );
}

function keyHelp() {
  const keys = [
    ["Tab", "goes to the next part of the page"],
    ["arrow keys", "move between heads, cells, tokens and tabs"],
    ["Enter", "picks the head or token that has the focus"],
    ["Home, End", "go to the start or the end of a row"],
    ["Escape", "closes the readout"],
  ];
  return make(
    "details",
    { class: "keys" },
    make("summary", { text: "Keyboard" }),
    make("dl", {}, ...keys.map(([key, text]) => make("div", {}, make("dt", { text: key }), make("dd", { text })))),
  );
}

function start() {
  const panels = new Map();
  const main = make("main");
  const navigation = make("nav", { class: "bar" });
  const stack = maps.length > 1
    ? tabBar("stack of layers", maps.map((map, place) => [place, mapName(map.name)]), state.map, (value) => change({ map: Number(value) }), "segments")
    : null;
  const views = tabBar("views", VIEWS.map(({ name, label }) => [name, label]), VIEWS[0]?.name, (view) => change({ view }), "tabs");
  const controls = maps.length ? headControls() : make("div");
  const stackBar = make("div", { class: "stack-bar" }, stack?.bar, controls);
  navigation.append(views.bar);

  function show() {
    const view = VIEWS.find(({ name }) => name === state.view);
    if (!panels.has(view.name)) {
      const panel = make("div", { role: "tabpanel", "aria-label": view.label, "data-view": view.name }, view.build());
      panels.set(view.name, panel);
      main.append(panel);
    }
    for (const [name, panel] of panels) panel.hidden = name !== view.name;
    controls.hidden = !WITH_HEAD.has(view.name);
    stackBar.hidden = !view.ofMap || (controls.hidden && !stack);
    views.select(view.name);
    tooltip.hide();
  }

  onChange((changed) => {
    if (changed.has("view")) show();
    if (changed.has("map")) stack?.select(state.map);
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && tooltip.hide());
  document.addEventListener("scroll", () => tooltip.hide(), { passive: true });
  document.body.append(pageHeader(), navigation, stackBar, main, make("footer", {}, keyHelp()), tooltip.element);
  if (VIEWS.length) change({ view: VIEWS[0].name });
}

start();
