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

// Layer, head, quantity and colours: shared by the views that show one head.
function headControls() {
  const bar = make("div", { class: "controls" });

  function build() {
    const map = currentMap();
    const layers = map.layers.map((number, place) => [place, String(number)]);
    const heads = Array.from({ length: map.heads }, (_, head) => [head, String(head)]);
    const fields = [
      selectField("Layer", layers, state.layer, (v) => change({ layer: Number(v) })).field,
      selectField("Head", heads, state.head, (v) => change({ head: Number(v) })).field,
    ];
    if (map.products) {
      const quantities = [["weights", "attention"], ["products", "attention × gradient"]];
      const pick = (quantity) => change({ quantity });
      fields.push(selectField("Show", quantities, state.quantity, pick).field);
    }
    const scales = Object.entries(SCALES).map(([name, { label }]) => [name, label]);
    fields.push(
      selectField("Colour scale", scales, state.scale, (scale) => change({ scale })).field,
      selectField(
        "Colour range",
        [["fixed", "same for all heads"], ["head", "up to each head's maximum"]],
        state.range,
        (range) => change({ range }),
      ).field,
    );
    bar.replaceChildren(...fields);
  }

  build();
  onChange((changed) => {
    const names = ["map", "layer", "head", "quantity", "scale", "range"];
    // A select that is being used keeps its focus: only what changed elsewhere is built again.
    if (names.some((name) => changed.has(name)) && !bar.contains(document.activeElement)) build();
  });
  return bar;
}
