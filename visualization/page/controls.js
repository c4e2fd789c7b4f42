// Fields for choices: a select with its label, groups of buttons, tabs.

let fieldCount = 0;

// A labelled select. `options` is a list of [value, label].
function selectField(label, options, chosen, onpick) {
  fieldCount += 1;
  const id = `field-${fieldCount}`;
  const select = make(
    "select",
    { id, onchange: () => onpick(select.value) },
    ...options.map(([value, text]) => make("option", { value, text })),
  );
  select.value = chosen;
  const field = make("div", { class: "field" }, make("label", { for: id, text: label }), select);
  return { field, select };
}

// Tabs in a row; arrow keys move between them. `names` is a list of [value, label].
function tabBar(label, names, chosen, onpick, className) {
  const buttons = names.map(([value, text]) =>
    make("button", {
      type: "button",
      role: "tab",
      text,
      "data-value": value,
      "aria-selected": String(value === chosen),
      onclick: () => onpick(value),
    }),
  );
  const bar = make("div", { role: "tablist", "aria-label": label, class: className }, ...buttons);
  const { stop } = moveWithArrows(bar, buttons, buttons.length);
  const select = (value) => {
    buttons.forEach((button, index) => {
      const on = button.dataset.value === String(value);
      button.setAttribute("aria-selected", String(on));
      if (on) stop(index);
    });
  };
  select(chosen);
  return { bar, select };
}

function badges(labels) {
  return labels.map((label) => make("span", { class: "badge", text: label }));
}

// Fields for layer, head, quantity and colours, each in the views that heed it.
function headControls() {
  const bar = make("div", { class: "controls" });

  function fields() {
    const map = currentMap();
    const layers = map.layers.map((number, place) => [place, String(number)]);
    const heads = Array.from({ length: map.heads }, (_, head) => [head, String(head)]);
    const quantities = [["weights", "attention"], ["products", "attention × gradient"]];
    const scales = Object.entries(SCALES).map(([name, { label }]) => [name, label]);
    const ranges = [["fixed", "same for all heads"], ["head", "up to each head's maximum"]];
    const numbered = (name) => (value) => change({ [name]: Number(value) });
    const named = (name) => (value) => change({ [name]: value });
    const all = [
      [["heads", "tokens", "image"], "Layer", layers, state.layer, numbered("layer")],
      [["heads", "tokens", "image"], "Head", heads, state.head, numbered("head")],
      [map.products ? ["heads"] : [], "Show", quantities, state.quantity, named("quantity")],
      [["heads", "rollout"], "Colour scale", scales, state.scale, named("scale")],
      [["heads"], "Colour range", ranges, state.range, named("range")],
    ];
    const shown = all.filter(([views]) => views.includes(state.view));
    return shown.map(([, ...field]) => selectField(...field).field);
  }

  onChange((changed) => {
    const names = ["view", "map", "layer", "head", "quantity", "scale", "range"];
    // A select that is being used keeps its focus, and shows the new value already.
    if (names.some((name) => changed.has(name)) && !bar.contains(document.activeElement)) {
      bar.replaceChildren(...fields());
    }
  });
  return bar;
}
