// Tunes and searches: what they tried, what came of it, and why.
import { byId, colourOf, fill, make, table } from "./dom.js";
import { plotOf } from "./curves.js";

const LONG = ["why", "what"];
const NUMBERS = ["steps", "return", "steps/s", "trial", "round", "memory"];
const open = new Set();
let shown = [];
let plots = []; // a plot that is not destroyed is kept by the window

export function showTrials(trials) {
  shown = trials;
  for (const plot of plots) plot.destroy();
  plots = [];
  byId("trials").hidden = !trials.length;
  fill(byId("trials-list"), ...trials.map((trial) => {
    const box = make("details");
    const summary = make("summary");
    summary.append(make("b", trial.kind), `  ${trial.title}  `, make("span", trial.state ?? "", trial.state === "done" ? "done" : "running"));
    box.append(summary, make("p", trial.path, "pale"), ...(trial.texts ?? []).map((text) => make("p", text)));
    const chart = make("div", "", "chart");
    box.append(chart);
    for (const part of trial.tables ?? []) {
      const scroll = make("div", "", "scroll", "tall");
      const columns = part.columns.map((name) => ({ name, number: NUMBERS.includes(name), long: LONG.includes(name) }));
      scroll.append(table(columns, part.rows));
      box.append(make("h3", part.title), scroll);
    }
    box.open = open.has(trial.id);
    box.addEventListener("toggle", () => {
      if (box.open) open.add(trial.id); else open.delete(trial.id);
      if (box.open && trial.series?.length && !chart.children.length) drawSeries(chart, trial.series);
    });
    if (box.open && trial.series?.length) requestAnimationFrame(() => { if (!chart.children.length) drawSeries(chart, trial.series); });
    return box;
  }));
}

function drawSeries(chart, series) {
  const tables = series.map((each) => [each.points.map((point) => point[0]), each.points.map((point) => point[1])]);
  plots.push(plotOf(chart, "steps", series.map((each, place) => ({ name: each.name, colour: colourOf(place) })), uPlot.join(tables)));
}

export function resizeTrials() {
  if (plots.length) showTrials(shown);
}
