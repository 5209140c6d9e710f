// Where the time goes: a row for each GMI, a column for each of the last iterations.
import { byId, fill, keyOf, make, phaseColour, PHASE_ORDER, setText } from "./dom.js";

const MOST = 60; // iterations
let recent = [];
let generation = -1;

export function forgetTime() {
  recent = [];
  generation = -1;
  fill(byId("time-rows"));
  fill(byId("time-legend"));
  setText(byId("time-note"), "");
}

export function takeTime(change) {
  if (change.generation !== generation) recent = [];
  generation = change.generation;
  recent.push(...change.recent);
  recent = recent.slice(-MOST);
  drawTime();
}

export function drawTime() {
  const note = byId("time-note");
  if (!recent.length) {
    setText(note, "These metrics do not have the time of each GMI: the share of the time is among the curves.");
    return;
  }
  const last = recent[recent.length - 1];
  const names = [...new Set(recent.flatMap((row) => row.gmis.flatMap((phases) => Object.keys(phases))))];
  const rank = (name) => (PHASE_ORDER.includes(name) ? PHASE_ORDER.indexOf(name) : 99);
  names.sort((one, other) => rank(one) - rank(other));
  const colours = new Map(names.map((name, place) => [name, phaseColour(name, place)]));
  setText(note, `Iterations ${recent[0].iteration ?? "?"} to ${last.iteration ?? "?"}, as high as the longest of them took.`);
  fill(byId("time-legend"), ...names.map((name) => keyOf(name, colours.get(name))));
  const longest = Math.max(...recent.flatMap((row) => row.gmis.map(total)), 1e-9);
  const rows = byId("time-rows");
  while (rows.children.length > last.gmis.length) rows.lastElementChild.remove();
  while (rows.children.length < last.gmis.length) {
    const row = make("div", "", "row");
    row.append(make("span", `GMI ${rows.children.length}`), make("canvas"));
    rows.append(row);
  }
  [...rows.children].forEach((row, gmi) => drawRow(row.lastElementChild, gmi, names, colours, longest));
}

const total = (phases) => Object.values(phases).reduce((sum, seconds) => sum + seconds, 0);

function drawRow(canvas, gmi, names, colours, longest) {
  const scale = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * scale));
  const height = Math.max(1, Math.round(canvas.clientHeight * scale));
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  recent.forEach((row, place) => {
    const left = Math.round((place * width) / MOST);
    const right = Math.round(((place + 1) * width) / MOST) - 1;
    let bottom = height;
    for (const name of names) {
      const tall = (height * (row.gmis[gmi]?.[name] ?? 0)) / longest;
      pen.fillStyle = colours.get(name);
      pen.fillRect(left, bottom - tall, Math.max(1, right - left), tall);
      bottom -= tall;
    }
  });
  const now = recent[recent.length - 1].gmis[gmi] ?? {};
  const sum = total(now) || 1;
  canvas.title = names.filter((name) => now[name]).map((name) => `${name} ${Math.round((100 * now[name]) / sum)} %`).join(", ");
}
