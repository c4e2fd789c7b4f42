// One line of numbers for each head, sorted by any of them.

const COLUMNS = [
  { name: "place", label: "head", title: "layer and head" },
  { name: "labels", label: "labels", title: "what the head is known for, by the thresholds above" },
  { name: "entropy", label: "entropy", title: "mean entropy of a row of weights, in nats" },
  { name: "evenness", label: "of maximum", title: "entropy as a part of log(visible keys)" },
  { name: "distance", label: "distance", title: "mean tokens or patches from query to key" },
  { name: "previous", label: "previous", title: "share on the previous token" },
  { name: "itself", label: "itself", title: "share on the query's own position" },
  { name: "following", label: "next", title: "share on the next token" },
  { name: "first", label: "first", title: "share on the first token" },
  { name: "special", label: "special", title: "share on special tokens" },
  { name: "gradient", label: "× gradient", title: "share of the sum of |attention × gradient|" },
];
const SHARES = new Set(["evenness", "gradient", ...PERCENT]);

function summaryTable() {
  let order = { name: "place", up: true };
  const head = make("tr");
  const body = make("tbody");
  const table = make("table", { class: "summaries" }, make("thead", {}, head), body);

  function shownColumns(map) {
    const known = (name) => map.summaries.some((row) => (row[name] ?? null) !== null);
    return COLUMNS.filter(({ name }) => name === "place" || name === "labels" || known(name));
  }

  function key(row, place) {
    if (order.name === "place") return place;
    if (order.name === "labels") return row.labels.length ? row.labels.join(" ") : "\uffff";
    return row[order.name];
  }

  function build() {
    const map = currentMap();
    const columns = shownColumns(map);
    head.replaceChildren(
      ...columns.map(({ name, label, title }) => {
        const on = order.name === name;
        const sort = on ? (order.up ? "ascending" : "descending") : "none";
        const button = make("button", {
          type: "button",
          text: label,
          title,
          "data-column": name,
          onclick: () => sortBy(name),
        });
        return make("th", { scope: "col", "aria-sort": sort }, button);
      }),
    );
    const rows = map.summaries.map((row, place) => ({ row, place }));
    const sign = order.up ? 1 : -1;
    rows.sort((a, b) => {
      const [x, y] = [key(a.row, a.place), key(b.row, b.place)];
      if (x === y) return a.place - b.place;
      if (x === null || x === undefined) return 1; // what is not known comes last
      if (y === null || y === undefined) return -1;
      return x < y ? -sign : sign;
    });
    body.replaceChildren(...rows.map(({ row, place }) => line(map, columns, row, place)));
    mark();
  }

  function line(map, columns, row, place) {
    const layer = Math.floor(place / map.heads);
    const pick = () => change({ layer, head: row.head, view: "heads" });
    const cells = columns.map(({ name }) => {
      if (name === "place") {
        const text = `${row.layer} · ${row.head}`;
        const label = `show ${headName(map, layer, row.head)}`;
        const button = make("button", {
          type: "button",
          class: "link",
          text,
          "aria-label": label,
          onclick: pick,
        });
        return make("th", { scope: "row" }, button);
      }
      if (name === "labels") return make("td", {}, ...badges(row.labels));
      if (!SHARES.has(name)) return make("td", { class: "number", text: decimal(row[name], 2) });
      const cell = make("td", { class: "number share", text: percent(row[name]) });
      cell.style.setProperty("--bar", `${100 * Math.min(1, row[name] ?? 0)}%`);
      return cell;
    });
    return make("tr", { "data-place": place }, ...cells);
  }

  function sortBy(name) {
    const first = name === "place" || name === "labels"; // numbers start with the largest
    order = { name, up: order.name === name ? !order.up : first };
    build();
    head.querySelector(`[data-column="${name}"]`).focus();
  }

  function mark() {
    const chosen = state.layer * currentMap().heads + state.head;
    for (const row of body.children) {
      row.classList.toggle("chosen", Number(row.dataset.place) === chosen);
    }
  }

  build();
  onChange((changed) => {
    if (changed.has("map")) build();
    else if (changed.has("layer") || changed.has("head")) mark();
  });
  const { share, even } = packedData.thresholds;
  return make(
    "section",
    { class: "panel", "aria-label": "summaries of heads" },
    make("div", { class: "panel-title" }, make("h2", { text: "Summaries" })),
    make("p", {
      class: "hint",
      text:
        `Means over the queries that see two keys or more: entropy in nats and as a share of the ` +
        `largest possible, log(visible keys); distance between query and key; then the shares of ` +
        `weight on the previous token, on the query's own and so on. A head is called ` +
        `previous-token, next-token, same-token, first-token or special-token when the share ` +
        `there is at least ${100 * share}%, and broad when its entropy is at least ` +
        `${100 * even}% of the largest possible. Press a column's name to sort.`,
    }),
    make("div", { class: "table-scroll" }, table),
  );
}
