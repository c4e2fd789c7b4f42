"use strict";
// The page's behaviour. All text of runs reaches the page as textContent or through `plain`.

let data = JSON.parse(document.getElementById("data").textContent);
const MARKS = {
  restart: "#7d8794", skipped: "#e69f00", rollback: "#d55e00", evaluation_failed: "#cc79a7",
  end: "#b3261e", not_finite: "#b3261e",
};
const root = document.documentElement;
const $ = (id) => document.getElementById(id);

// State survives the reloads of a page that is served while a run goes on.
const KEY = "report-state:" + data.title;
const state = {axis: "steps", smoothing: 0.6, logX: false, logY: false, hidden: [], theme: "", sample: {}};
try { Object.assign(state, JSON.parse(sessionStorage.getItem(KEY) || "{}")); } catch { /* first visit */ }
function keep() {
  try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch { /* storage is off */ }
}

// Plotly reads some tags in text; entities make them plain characters.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function smooth(values, weight) {
  let average = 0, count = 0;
  return values.map((value) => {
    if (value === null) return null;
    count += 1;
    average = weight * average + (1 - weight) * value;
    return average / (1 - weight ** count);
  });
}

function clock(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return seconds < 10 ? seconds.toFixed(1) + " s" : s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  const m = Math.round(seconds / 60);
  return Math.floor(m / 60) + " h " + (m % 60) + " min";
}

function isDark() {
  return state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function colour(index) { return data.colours[isDark() ? "dark" : "light"][index % data.colours.light.length]; }

function css(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }

function isNarrow() { return matchMedia("(max-width: 640px), (pointer: coarse)").matches; }

function baseLayout(xTitle, more) {
  const axis = {
    gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"),
    tickfont: {size: 11}, automargin: true, exponentformat: "power",
  };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: css("--soft"), family: "system-ui, sans-serif", size: 12},
    margin: {l: 48, r: 12, t: 8, b: 36}, showlegend: false, hovermode: "x unified",
    hoverlabel: {bgcolor: css("--card"), bordercolor: css("--line"), font: {color: css("--ink"), size: 12}, namelength: 40},
    xaxis: {...axis, title: {text: xTitle, font: {size: 11}, standoff: 4}},
    yaxis: {...axis}, dragmode: isNarrow() ? false : "zoom",
  };
  return Object.assign(layout, more);
}

const CONFIG = {
  displaylogo: false, responsive: true, showTips: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"], doubleClick: "reset",
};

function visible(index) { return !state.hidden.includes(data.runs[index].key); }

function axisOf(run) { return run.axes[state.axis]; }

function timeTicks(layout, from, to) {
  // Round minutes or hours instead of thousands of seconds.
  const span = to - from || 1;
  const sizes = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
  const size = sizes.find((each) => span / each <= 6) || span / 5;
  const places = [];
  for (let at = Math.ceil(from / size) * size; at <= to + 1e-9; at += size) places.push(at);
  layout.xaxis.tickvals = places;
  layout.xaxis.ticktext = places.map((at) => at === 0 ? "0" : clock(at).replace(/ min 0 s$/, " min").replace(/ h 0 min$/, " h").replace(/\.0 s$/, " s"));
}

function drawCurve(div) {
  const name = div.dataset.metric, traces = [], xs = [];
  data.runs.forEach((run, index) => {
    const metric = run.metrics[name], axis = axisOf(run);
    if (!metric || !axis || !visible(index)) return;
    const x = metric.at.map((place) => axis[place]), raw = metric.values;
    xs.push(...x);
    const isSmooth = state.smoothing > 0 && raw.length > 2 && !data.unsmoothed.some((start) => name.startsWith(start));
    const times = state.axis === "seconds" ? x.map(clock) : x;
    const line = {color: colour(index), width: 2};
    if (isSmooth) traces.push({x, y: raw, mode: "lines", opacity: 0.35, line: {...line, width: 1}, hoverinfo: "skip", name: plain(run.name)});
    traces.push({
      x, y: isSmooth ? smooth(raw, state.smoothing) : raw, name: plain(run.name), line,
      mode: raw.length < 40 ? "lines+markers" : "lines", marker: {size: raw.length < 2 ? 8 : 5},
      customdata: raw.map((value, place) => [value, times[place]]),
      hovertemplate: isSmooth ? "%{y:.5g} <i>raw %{customdata[0]:.5g}</i>" : "%{y:.5g}",
    });
  });
  const shapes = [], marks = {x: [], y: [], text: [], color: []};
  data.runs.forEach((run, index) => {
    if (!run.metrics[name] || !axisOf(run) || !visible(index)) return;
    for (const mark of run.marks) {
      const x = axisOf(run)[mark.at];
      shapes.push({type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: {color: MARKS[mark.kind], width: 1.4, dash: "dash"}, opacity: 0.8});
      marks.x.push(x); marks.y.push(0.02); marks.color.push(colour(index));  // the line says what, the triangle who
      marks.text.push(plain(run.name + ": " + mark.text).slice(0, 300));
    }
  });
  if (marks.x.length) {
    traces.push({
      x: marks.x, y: marks.y, text: marks.text, yaxis: "y2", mode: "markers", name: "",
      marker: {symbol: "triangle-up", size: 8, color: marks.color}, hovertemplate: "%{text}<extra></extra>",
    });
  }
  const layout = baseLayout(data.axisTitles[state.axis], {shapes, uirevision: state.axis + state.logX + state.logY});
  // 15k instead of 1.5×10⁴. Small values keep powers: 0.0005 says more than 500µ.
  layout.xaxis.exponentformat = "B";
  if (name.endsWith("_per_second")) layout.yaxis.exponentformat = "B";
  layout.xaxis.type = state.logX ? "log" : "linear";
  layout.yaxis.type = state.logY ? "log" : "linear";
  layout.yaxis2 = {overlaying: "y", range: [0, 1], visible: false, fixedrange: true};
  if (state.axis === "seconds" && xs.length) {
    layout.xaxis.hoverformat = ".1f";
    layout.xaxis.unifiedhovertitle = {text: "%{x:.1f} s"};
    if (!state.logX) timeTicks(layout, Math.min(...xs), Math.max(...xs));
  } else if (state.axis === "steps") {
    layout.xaxis.unifiedhovertitle = {text: "step %{x:d}"};
  }
  return Plotly.react(div, traces, layout, CONFIG);
}

function drawPositions(div) {
  const traces = [];
  JSON.parse(div.dataset.plot).forEach(({run, x, y}) => {
    if (!visible(run)) return;
    const name = plain(data.runs[run].name), color = colour(run), isSmooth = state.smoothing > 0;
    if (isSmooth) traces.push({x, y, mode: "lines", opacity: 0.35, line: {color, width: 1}, name, hoverinfo: "skip"});
    traces.push({
      x, y: isSmooth ? smooth(y, state.smoothing) : y, mode: "lines", line: {color, width: 2}, name, customdata: y,
      hovertemplate: isSmooth ? "%{y:.4f} <i>raw %{customdata:.4f}</i>" : "%{y:.4f}",
    });
  });
  return Plotly.react(div, traces, baseLayout("position in the row"), CONFIG);
}

function drawLengths(div) {
  const traces = [];
  JSON.parse(div.dataset.plot).forEach(({run, x, y, text}) => {
    if (!visible(run)) return;
    traces.push({
      x, y, text: text.map(plain), mode: "lines+markers", line: {color: colour(run), width: 2}, name: plain(data.runs[run].name),
      hovertemplate: "%{y:.4g} <i>%{text}</i>",
    });
  });
  return Plotly.react(div, traces, baseLayout("tokens of the source (middle of the bin)"), CONFIG);
}

function drawConfusion(div) {
  const {labels, matrix} = JSON.parse(div.dataset.plot);
  const shares = matrix.map((row) => {
    const total = row.reduce((a, b) => a + b, 0);
    return row.map((count) => count === 0 ? null : count / (total || 1));
  });
  const places = labels.map((_, place) => place), names = labels.map((label) => plain(label).slice(0, 40));
  const few = labels.length <= 14 && !isNarrow();
  const dark = isDark();
  const trace = {
    type: "heatmap", z: shares, x: places, y: places, customdata: matrix, zmin: 0, zmax: 1, xgap: 1, ygap: 1,
    colorscale: dark ? [[0, "#1d2a3a"], [0.5, "#2f6fb5"], [1, "#a9d3ff"]] : [[0, "#eaf2fb"], [0.5, "#5b9bd8"], [1, "#08306b"]],
    hovertemplate: "%{text} (%{z:.1%})<extra></extra>", colorbar: {thickness: 10, tickformat: ".0%", outlinewidth: 0, tickfont: {size: 11}},
    text: matrix.map((row, r) => row.map((count, c) => "label " + names[r] + ", prediction " + names[c] + ": " + count)),
  };
  const layout = baseLayout("prediction", {hovermode: "closest"});
  // Every label where there is room for it, or every second, third, ...
  const every = Math.ceil(labels.length / (isNarrow() ? 12 : 34));
  const ticks = {tickmode: "array", tickvals: places.filter((p) => p % every === 0), ticktext: names.filter((_, p) => p % every === 0), showgrid: false, zeroline: false};
  Object.assign(layout.xaxis, ticks, {tickangle: labels.length > 12 ? -90 : 0});
  Object.assign(layout.yaxis, ticks, {autorange: "reversed", title: {text: "label", font: {size: 11}, standoff: 4}});
  if (few) {
    const [onPale, onDeep] = dark ? ["#e6eaef", "#10141a"] : ["#1c2128", "#ffffff"];
    layout.annotations = matrix.flatMap((row, r) => row.flatMap((count, c) => count === 0 ? [] : [{
      x: c, y: r, text: String(count), showarrow: false,
      font: {size: 11, color: shares[r][c] > 0.45 ? onDeep : onPale},
    }]));
  }
  return Plotly.react(div, [trace], layout, CONFIG);
}

const DRAW = {curve: drawCurve, positions: drawPositions, lengths: drawLengths, confusion: drawConfusion};

let round = 0;
async function drawAll() {
  const mine = ++round;  // a newer change ends this one
  root.removeAttribute("data-drawn");
  for (const div of document.querySelectorAll(".canvas")) {
    if (mine !== round) return;
    await DRAW[div.dataset.kind](div);
    await new Promise((resolve) => setTimeout(resolve));
  }
  root.setAttribute("data-drawn", String(mine));
}

function showSamples() {
  for (const block of document.querySelectorAll("[data-samples]")) {
    const set = block.dataset.samples, steps = data.samples[set].steps;
    const slider = block.querySelector("input");
    const place = state.sample[set] ?? steps.length - 1;
    slider.value = Math.min(place, steps.length - 1);
    const step = steps[slider.value];
    block.querySelector("output").textContent = step;
    data.samples[set].runs.forEach(({run, texts}) => {
      const at = Object.keys(texts).map(Number).filter((each) => each <= step).sort((a, b) => b - a)[0];
      const box = block.querySelector(`[data-run="${run}"]`);
      box.hidden = !visible(run);
      box.querySelector(".at").textContent = at === undefined ? "nothing yet" : "step " + at;
      box.querySelector("pre").textContent = at === undefined ? "" : texts[at];
    });
  }
}

function press() {
  root.dataset.theme = isDark() ? "dark" : "light";
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button.dataset.axis === state.axis);
  $("log-y").setAttribute("aria-pressed", state.logY);
  $("log-x").setAttribute("aria-pressed", state.logX);
  $("smoothing").value = state.smoothing;
  $("smoothing-value").textContent = Number(state.smoothing).toFixed(2);
  for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", visible(Number(chip.dataset.run)));
  for (const dot of document.querySelectorAll(".dot")) dot.style.background = colour(Number(dot.dataset.run));
  $("theme").textContent = isDark() ? "light" : "dark";
  showSamples();
  keep();
}

function change(values) { Object.assign(state, values); press(); drawAll(); }

function listen() {
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.disabled = !data.runs.some((run) => run.axes[button.dataset.axis]);
    button.addEventListener("click", () => change({axis: button.dataset.axis}));
  }
  if (!data.runs.some((run) => run.axes[state.axis])) state.axis = "steps";
  $("log-y").addEventListener("click", () => change({logY: !state.logY}));
  $("log-x").addEventListener("click", () => change({logX: !state.logX}));
  $("smoothing").addEventListener("input", (event) => change({smoothing: Number(event.target.value)}));
  $("theme").addEventListener("click", () => change({theme: isDark() ? "light" : "dark"}));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => change({}));
  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const key = data.runs[Number(chip.dataset.run)].key;
      change({hidden: state.hidden.includes(key) ? state.hidden.filter((each) => each !== key) : [...state.hidden, key]});
    });
  }
  listenToSamples();
}

function listenToSamples() {
  for (const block of document.querySelectorAll("[data-samples]")) {
    block.querySelector("input").addEventListener("input", (event) => {
      state.sample[block.dataset.samples] = Number(event.target.value);
      if (event.target.value === event.target.max) delete state.sample[block.dataset.samples];  // the newest
      showSamples();
      keep();
    });
  }
}

async function loadPlotly() {
  const packed = Uint8Array.from(atob($("plotly").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// A page that is served looks for a newer version, and takes over what has changed in it.
const RENEWED = ["summary", "config", "samples", "details", "history", "environment"];

function metricsOf(section) {
  return [...section.querySelectorAll("[data-metric]")].map((div) => div.dataset.metric).join("\n");
}

async function renew() {
  const answer = await fetch("/", {cache: "no-store"});
  if (!answer.ok) return false;
  const text = await answer.text();
  const page = new DOMParser().parseFromString(text, "text/html");
  data = JSON.parse(page.getElementById("data").textContent);
  for (const id of [...RENEWED, "curves"]) {
    const old = $(id), fresh = page.getElementById(id);
    if (id === "curves" && metricsOf(old) === metricsOf(fresh)) continue;
    const open = [...old.querySelectorAll("details")].map((each) => each.open);
    const folded = [...fresh.querySelectorAll("details")];
    if (folded.length === open.length) folded.forEach((each, place) => { each.open = open[place]; });
    old.replaceWith(document.importNode(fresh, true));
  }
  $("written").textContent = page.getElementById("written").textContent;
  listenToSamples();
  press();
  await drawAll();
  return true;
}

function watch() {
  let isBusy = false;
  setInterval(async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      const answer = await fetch("/", {method: "HEAD", cache: "no-store"});
      let isReadable = answer.ok;
      if (isReadable && answer.headers.get("ETag") !== `"${data.version}"`) isReadable = await renew();
      $("live").textContent = isReadable ? "live" : "the runs cannot be read now";
    } catch {
      $("live").textContent = "the server has ended";
    }
    isBusy = false;
  }, data.refresh * 1000);
}

async function begin() {
  listen();
  press();
  if (data.refresh) watch();
  try {
    await loadPlotly();
  } catch (error) {
    $("no-curves").hidden = false;
    throw error;
  }
  await drawAll();
}
begin();
