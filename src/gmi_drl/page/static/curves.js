// Curves: of each number in the metrics, and of the share that each phase has of the time.
import { byId, colourOf, cssColour, fill, make, phaseColour, PHASE_ORDER } from "./dom.js";

const AXES = { iteration: "iteration", steps: "steps", time_s: "seconds" };
const FIRST = ["return_mean", "steps_per_s", "kl", "policy_loss", "value_loss", "entropy", "length_mean", "noise_scale", "learning_rate"];
const NAMES = new Map(Object.entries({
  return_mean: "return (mean of 100 episodes)", steps_per_s: "steps/s", kl: "KL", mem_peak_bytes: "memory of a GMI at most (bytes)",
  length_mean: "length of episodes", episodes: "episodes ended",
}));
const AGENTS = ["simulate", "infer", "send"];
const HEIGHT = 190;

let axis = "steps";
let columns = new Map(); // by key: a run may call its numbers __proto__
let generation = -1;
let charts = new Map(); // by key: {plot, box}
let due = false;
let drawn = -Infinity; // when, in milliseconds

export function forgetCurves() {
  columns = new Map();
  generation = -1;
  for (const { plot } of charts.values()) plot.destroy();
  charts = new Map();
  drawn = -Infinity;
  fill(byId("charts"));
}

export function takeCurves(change) {
  if (change.generation !== generation) columns = new Map();
  generation = change.generation;
  for (const [key, values] of Object.entries(change.columns)) {
    if (!columns.has(key)) columns.set(key, []);
    const column = columns.get(key);
    column.length = Math.min(column.length, change.from);
    while (column.length < change.from) column.push(null);
    for (const value of values) column.push(value);
  }
  drawSoon();
}

function drawSoon() {
  if (due) return;
  if (drawn === -Infinity) { // the first curves are in the frame that shows the run
    drawNow();
    return;
  }
  due = true; // at most ten times a second, and not while nobody looks
  const wait = Math.max(0, drawn + 100 - performance.now());
  setTimeout(() => requestAnimationFrame(drawNow), wait);
}

function drawNow() {
  due = false;
  drawn = performance.now();
  draw();
}

export function showAxes() {
  fill(byId("axes"), "against ", ...Object.entries(AXES).map(([key, name]) => {
    const button = make("button", name);
    button.type = "button";
    button.setAttribute("aria-pressed", String(key === axis));
    button.addEventListener("click", () => { axis = key; showAxes(); redrawAll(); });
    return button;
  }));
}

export function redrawAll() {
  for (const { plot } of charts.values()) plot.destroy();
  charts = new Map();
  fill(byId("charts"));
  draw();
}

function draw() {
  const xs = columns.get(axis) ?? [];
  if (!xs.length) return;
  const rows = points(xs);
  const keys = [...columns.keys()].filter((key) => !Object.hasOwn(AXES, key) && !isPhase(key));
  const rank = (key) => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length);
  keys.sort((one, other) => rank(one) - rank(other) || (one < other ? -1 : 1));
  const colour = cssColour("--accent");
  const parts = keys.map((key) => [key, [{ name: key, colour, values: rows.map((row) => columns.get(key)[row] ?? null) }]]);
  parts.splice(2, 0, ...sides().map(([title, names]) => [title, shares(names, rows)]));
  const shownXs = rows.map((row) => xs[row]);
  const fresh = parts.filter(([key, series]) => !drawAnew(key, shownXs, series));
  // All boxes are added before one is measured, so that the browser lays the page out once.
  const boxes = fresh.map(([key, series]) => boxOf(key, series));
  byId("charts").append(...boxes);
  const look = boxes.length && lookOf(boxes[0]);
  fresh.forEach(([key, series], place) => {
    const named = series.map((each) => ({ ...each, name: series.length > 1 ? each.name : key }));
    const plot = plotOf(boxes[place], AXES[axis], named, [shownXs, ...series.map((each) => each.values)], look);
    charts.set(key, { plot, box: boxes[place], names: namesOf(series) });
  });
}

const isPhase = (key) => key.endsWith("_s") && !key.endsWith("_per_s") && key !== "time_s";

// The phases whose shares add up to the time: agents and trainers that are GMIs apart have theirs.
function sides() {
  const names = [...columns.keys()].filter(isPhase).map((key) => key.slice(0, -2));
  const rank = (name) => (PHASE_ORDER.includes(name) ? PHASE_ORDER.indexOf(name) : PHASE_ORDER.length);
  names.sort((one, other) => rank(one) - rank(other));
  if (!names.includes("send")) return names.length ? [["share of the time (%)", names]] : [];
  const agents = names.filter((name) => AGENTS.includes(name));
  const trainers = names.filter((name) => !AGENTS.includes(name));
  return [["share of the agents' time (%)", agents], ["share of the trainers' time (%)", trainers]];
}

// uPlot needs rising values of x; after a resume of damaged files they may not be.
function points(xs) {
  const rows = [];
  let last = -Infinity;
  for (let row = 0; row < xs.length; row += 1) {
    if (xs[row] !== null && xs[row] !== undefined && xs[row] > last) { rows.push(row); last = xs[row]; }
  }
  return rows;
}

function shares(names, rows) {
  const seconds = (name, row) => columns.get(`${name}_s`)[row] ?? 0;
  const totals = rows.map((row) => names.reduce((sum, name) => sum + seconds(name, row), 0));
  return names.map((name, place) => ({
    name, colour: phaseColour(name, place),
    values: rows.map((row, at) => (totals[at] > 0 ? (100 * seconds(name, row)) / totals[at] : null)),
  }));
}

const namesOf = (series) => series.map((each) => each.name).join();

// Gives a chart that is there its new values; false if there is none of these series.
function drawAnew(key, xs, series) {
  const known = charts.get(key);
  if (!known) return false;
  if (known.names === namesOf(series)) {
    known.plot.setData([xs, ...series.map((each) => each.values)]);
    return true;
  }
  known.plot.destroy();
  known.box.remove();
  return false;
}

function boxOf(key, series) {
  const box = make("div", "", "chart", series.length === 1 && "single");
  box.dataset.key = key;
  box.append(make("h3", NAMES.get(key) ?? key.replaceAll("_", " ")));
  return box;
}

const short = (value) => {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(4)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return size && size < 1e-5 ? value.toExponential(2) : String(+value.toPrecision(4));
};

// The width and colours of a chart in this box. Reading them forces a layout: once for all charts.
function lookOf(box) {
  const [text, grid, line] = ["--pale", "--hollow", "--line"].map(cssColour);
  return { width: Math.max(220, box.clientWidth), text, grid, line };
}

export function plotOf(box, xName, series, data, look = lookOf(box)) {
  const axisOf = (size) => ({
    stroke: look.text, size, font: "11px system-ui, sans-serif",
    grid: { stroke: look.grid, width: 1 }, ticks: { stroke: look.line, width: 1, size: 4 },
    values: (plot, values) => values.map(short),
  });
  return new uPlot({
    width: look.width, height: HEIGHT,
    scales: { x: { time: false } }, cursor: { drag: { x: true, y: false } },
    axes: [axisOf(30), axisOf(60)],
    series: [
      { label: xName, value: (plot, value) => short(value) },
      ...series.map((each, place) => ({ label: each.name, stroke: each.colour ?? colourOf(place), width: 1.5, spanGaps: true, value: (plot, value) => short(value) })),
    ],
  }, data, box);
}

export function resizeCurves() {
  const all = [...charts.values()];
  const width = all.length && lookOf(all[0].box).width; // all boxes are as wide
  for (const { plot } of all) plot.setSize({ width, height: HEIGHT });
}
