// Makes elements. Text of runs is only ever set as text: it may be a stranger's.

export const byId = (id) => document.getElementById(id);

export function make(tag, text = "", ...classes) {
  const element = document.createElement(tag);
  element.textContent = text;
  element.classList.add(...classes.filter(Boolean));
  return element;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children);
  return parent;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // else a selection is lost
}

// A table: columns are {name, number, long}; cells are text or elements.
export function table(columns, rows) {
  const head = make("tr");
  for (const column of columns) head.append(make("th", column.name, column.number && "number"));
  const body = make("tbody");
  for (const cells of rows) {
    const row = make("tr");
    cells.forEach((cell, place) => {
      const column = columns[place];
      const item = make("td", "", column.number && "number", column.long && "long");
      item.append(cell ?? "");
      row.append(item);
    });
    body.append(row);
  }
  const all = make("table");
  const top = make("thead");
  top.append(head);
  all.append(top, body);
  return all;
}

// What the server answered; where that is no JSON, an error with its text.
export async function contentOf(response) {
  const text = await response.text();
  if (response.headers.get("content-type") !== "application/json") throw new Error(text.trim());
  return JSON.parse(text);
}

export const count = (value) => (value === null || value === undefined ? "" : Math.round(value).toLocaleString("en"));

export const percent = (value) => (value === null || value === undefined ? "" : `${Math.round(100 * value)} %`);

export function clock(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const date = new Date(1000 * seconds);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const PALETTE = ["#4c78a8", "#e8871e", "#4b9b5a", "#c44e52", "#8172b3", "#937860", "#d884b8", "#7f7f7f", "#b5a132", "#4aa3b8", "#2f4b7c", "#a05195"];
export const colourOf = (place) => PALETTE[place % PALETTE.length];

const PHASES = new Map([
  ["simulate", "#4c78a8"], ["infer", "#e8871e"], ["send", "#c44e52"], ["wait", "#b0b8c0"], ["train", "#4b9b5a"], ["reduce", "#8172b3"],
]);
export const phaseColour = (name, place) => PHASES.get(name) ?? colourOf(place + 5);
export const PHASE_ORDER = [...PHASES.keys()];

export function keyOf(name, colour) {
  const item = make("span", "", "key");
  const patch = make("i");
  patch.style.background = colour;
  item.append(patch, name);
  return item;
}
