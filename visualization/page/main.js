// Puts the page together.

const anyMap = maps.length > 0;
const VIEWS = [
  { name: "heads", label: "Heads", build: headView, when: anyMap },
  { name: "tokens", label: "Tokens", build: tokenView, when: anyMap },
  { name: "summaries", label: "Summaries", build: summaryTable, when: anyMap },
  { name: "rollout", label: "Rollout", build: rolloutView, when: maps.some(hasWhole) },
  {
    name: "image",
    label: capitalized(packedData.image?.name ?? ""),
    build: imageView,
    when: anyMap && packedData.image,
  },
  { name: "lens", label: "Logit lens", build: lensView, when: packedData.lens },
  { name: "scores", label: "Probabilities", build: scoreView, when: packedData.scores },
  { name: "norms", label: "Norms", build: normView, when: packedData.norms.length > 0 },
].filter(({ when }) => when);

// Views of one stack of layers.
const OF_STACK = new Set(["heads", "tokens", "summaries", "rollout", "image"]);

// A list of names and values.
function definitions(className, pairs) {
  return make(
    "dl",
    { class: className },
    ...pairs.map(([name, value]) =>
      make(
        "div",
        {},
        make("dt", { text: name }),
        make("dd", {}, make("bdi", { dir: "auto", text: value })),
      ),
    ),
  );
}

// How exact the numbers of this page are.
function precision() {
  const { bits, largestError } = packedData.precision;
  const steps = (2 ** bits - 1).toLocaleString("en");
  const most = largestError.toPrecision(3);
  const text =
    `Weights are stored with ${bits} bits: a weight w is exact to √w / ${steps}, ` +
    `which is at most ${most}. Row sums and summaries come from the model's own weights.`;
  return make("p", { class: "hint", text });
}

function pageHeader() {
  const theme = make("button", {
    type: "button",
    class: "theme",
    text: "◐",
    "aria-label": "switch between light and dark",
    title: "switch between light and dark",
    onclick: toggleTheme,
  });
  const title = make("h1", {}, make("bdi", { dir: "auto", text: packedData.title }));
  const prediction = make(
    "p",
    { class: "prediction" },
    make("span", { class: "hint", text: "prediction" }),
    make("bdi", { dir: "auto", text: visibleEnds(packedData.prediction) }),
  );
  prediction.hidden = !packedData.prediction;
  return make(
    "header",
    {},
    make("div", { class: "title-line" }, title, theme),
    prediction,
    definitions("facts", packedData.facts),
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
  const list = definitions("", keys);
  return make("details", { class: "key-help" }, make("summary", { text: "Keyboard" }), list);
}

function stackTabs() {
  const names = maps.map((map, place) => [place, mapName(map.name)]);
  const pick = (value) => change({ map: Number(value) });
  return tabBar("stack of layers", names, state.map, pick, "segments");
}

function start() {
  const panels = new Map();
  const main = make("main");
  const names = VIEWS.map(({ name, label }) => [name, label]);
  const views = tabBar("views", names, names[0]?.[0], (view) => change({ view }), "tabs");
  const stacks = maps.length > 1 ? stackTabs() : null;
  const controls = anyMap ? headControls() : make("div");
  const stackBar = make("div", { class: "stack-bar" }, stacks?.bar, controls);

  function show() {
    const view = VIEWS.find(({ name }) => name === state.view);
    if (!panels.has(view.name)) {
      const properties = { role: "tabpanel", "aria-label": view.label, "data-view": view.name };
      const panel = make("div", properties);
      panels.set(view.name, panel);
      main.append(panel);
      panel.append(view.build());
    }
    for (const [name, panel] of panels) panel.hidden = name !== view.name;
    stackBar.hidden = !OF_STACK.has(view.name) || !(stacks || controls.hasChildNodes());
    views.select(view.name);
    tooltip.hide();
  }

  onChange((changed) => {
    if (changed.has("view")) show();
    if (changed.has("map")) stacks?.select(state.map);
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && tooltip.hide());
  document.addEventListener("scroll", () => tooltip.hide(), { passive: true });
  document.body.append(
    pageHeader(),
    make("nav", { class: "bar" }, views.bar),
    stackBar,
    main,
    make("footer", {}, anyMap ? precision() : null, keyHelp()),
    tooltip.element,
  );
  if (VIEWS.length) change({ view: VIEWS[0].name });
}

start();
