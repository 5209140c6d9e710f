"use strict";
// Draws the curves of the comparison that lies in this page. Text is only ever set as text.
(() => {
  const { labels, axes, metrics, names } = JSON.parse(document.getElementById("data").textContent);
  const COLORS = ["#2f7ed8", "#e4572e", "#3a9d5d", "#8e5bd0", "#c8961e", "#1ba3a8", "#d6468d",
    "#7a7d85", "#8c5a2b", "#5c7f12"];
  const byId = (id) => document.getElementById(id);
  const color = (group) => COLORS[group % COLORS.length];
  const shade = (group, alpha) => color(group) + alpha;
  const isShown = labels.map(() => true);
  const charts = new Map();  // by axis

  const say = (value) =>
    value === null || value === undefined ? "-"
      : value.toLocaleString("en-US", { maximumSignificantDigits: 5 });

  // The point of a curve that is nearest to x; -1 outside of it.
  const nearest = (xs, x) => {
    if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return -1;
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return x - xs[low] <= xs[high] - x ? low : high;
  };

  const draw = (axis) => {
    charts.get(axis)?.destroy();
    const host = byId(`chart-${axis}`), values = byId(`values-${axis}`);
    host.replaceChildren();
    values.textContent = "";
    const metric = byId("metric").value, withSeeds = byId("seeds").checked;
    const series = [{}], bands = [], tables = [], drawn = [];
    metrics[metric][axis].forEach((curve, group) => {
      if (curve === null || !isShown[group]) return;
      const rows = [curve.x, curve.middle];
      const point = { show: curve.x.length === 1, fill: color(group) };
      series.push({ stroke: color(group), width: 2, points: point });
      if (curve.seeds) {
        const edge = { stroke: shade(group, "00"), width: 0, points: { show: false } };
        bands.push({ series: [series.length, series.length + 1], fill: shade(group, "33") });
        series.push(edge, { ...edge });
        rows.push(curve.high, curve.low);
      }
      for (const seed of withSeeds && curve.seeds ? curve.seeds : []) {
        rows.push(seed);
        series.push({ stroke: shade(group, "88"), width: 1, dash: [4, 3], points: { show: false } });
      }
      tables.push(rows);
      drawn.push({ curve, group });
    });
    if (!tables.length) {
      values.textContent = "nothing to draw";
      return;
    }
    const ink = getComputedStyle(document.body).color;
    const line = { stroke: ink, grid: { stroke: "#80808033" }, ticks: { stroke: "#80808066" } };
    const move = (plot) => {
      const { left } = plot.cursor;
      if (left === undefined || left < 0) return;
      const x = plot.posToVal(left, "x"), parts = [];
      for (const { curve, group } of drawn) {
        const at = nearest(curve.x, x);
        if (at < 0) continue;
        const band = curve.seeds ? ` (${say(curve.low[at])} to ${say(curve.high[at])})` : "";
        parts.push(`${labels[group]}: ${say(curve.middle[at])}${band}`);
      }
      values.textContent = `${axes[axis]} ${say(x)}   ${parts.join("   ")}`;
    };
    charts.set(axis, new uPlot({
      width: Math.max(200, host.clientWidth), height: 340, series, bands,
      scales: { x: { time: false } },
      axes: [{ ...line, label: axes[axis] }, { ...line, size: 68, label: names[metric] }],
      legend: { show: false },
      hooks: { setCursor: [move] },
    }, uPlot.join(tables), host));
  };

  const drawAll = () => Object.keys(axes).forEach(draw);

  labels.forEach((label, group) => {
    const button = document.createElement("button"), swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = color(group);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(swatch, document.createTextNode(label));
    button.addEventListener("click", () => {
      isShown[group] = !isShown[group];
      button.setAttribute("aria-pressed", String(isShown[group]));
      drawAll();
    });
    byId("groups").append(button);
  });
  for (const metric of Object.keys(metrics)) {
    const option = document.createElement("option");
    option.value = metric;
    option.textContent = names[metric];
    byId("metric").append(option);
  }
  byId("metric").addEventListener("change", drawAll);
  byId("seeds").addEventListener("change", drawAll);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width === window.innerWidth) return;
    width = window.innerWidth;
    for (const [axis, plot] of charts) {
      plot.setSize({ width: Math.max(200, byId(`chart-${axis}`).clientWidth), height: 340 });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  byId("curves").hidden = false;  // before it is drawn: what is hidden has no width
  drawAll();
})();
