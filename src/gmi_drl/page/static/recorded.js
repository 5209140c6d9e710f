// Tasks, actors and objects that a run recorded, and what led to each.
import { byId, clock, contentOf, count, fill, make, setText, table } from "./dom.js";

let run = null;

export function forgetRecorded(id) {
  run = id;
  byId("recorded").hidden = !id;
  fill(byId("tables"));
  byId("lineage").hidden = true;
  setText(byId("recorded-note"), "");
}

export function listen() {
  byId("read").addEventListener("click", readState);
  byId("lineage-form").addEventListener("submit", (event) => {
    event.preventDefault();
    readLineage(byId("lineage-id").value);
  });
}

async function answer(path) {
  const asked = run;
  setText(byId("recorded-note"), "reading ...");
  try {
    const response = await fetch(`/runs/${encodeURIComponent(asked)}/${path}`);
    const content = await contentOf(response);
    if (asked !== run) return null;
    setText(byId("recorded-note"), content.error ?? "");
    return content.error ? null : content;
  } catch (error) {
    setText(byId("recorded-note"), `it could not be read: ${error.message}`);
    return null;
  }
}

const milliseconds = (seconds) => (seconds === null ? "" : `${(1000 * seconds).toPrecision(3)} ms`);

function idButton(id) {
  const button = make("button", id.slice(0, 12), "name");
  button.type = "button";
  button.addEventListener("click", () => { byId("lineage-id").value = id; readLineage(id); });
  return button;
}

async function readState() {
  const state = await answer("state");
  if (!state) return;
  const parts = [
    ["Tasks", [{ name: "function" }, { name: "kind" }, { name: "state" }, { name: "count", number: true }, { name: "mean", number: true }, { name: "longest", number: true }, { name: "newest" }],
      state.tasks.map((row) => [row.name, row.kind, row.state, count(row.count), milliseconds(row.mean_s), milliseconds(row.max_s), idButton(row.newest)])],
    ["Actors", [{ name: "name" }, { name: "class" }, { name: "state" }, { name: "pid", number: true }, { name: "device", number: true }, { name: "restarts", number: true }, { name: "calls", number: true }, { name: "id" }, { name: "reason", long: true }],
      state.actors.map((row) => [row.name, row.class_name, row.state, String(row.pid || ""), row.device < 0 ? "" : String(row.device), count(row.restarts), count(row.calls), idButton(row.id), row.reason])],
    ["Objects in shared memory", [{ name: "where" }, { name: "count", number: true }, { name: "bytes", number: true }],
      state.objects.map((row) => [row.where, count(row.count), count(row.nbytes)])],
    ["Last events", [{ name: "time" }, { name: "event" }, { name: "of" }, { name: "text", long: true }],
      state.events.map((row) => [clock(row.time_s), row.kind, row.subject.slice(0, 12), row.text])],
  ];
  fill(byId("tables"), ...parts.filter(([, , rows]) => rows.length).flatMap(([title, columns, rows]) => {
    const scroll = make("div", "", "scroll", "tall");
    scroll.append(table(columns, rows));
    return [make("h3", title), scroll];
  }));
}

async function readLineage(id) {
  const lineage = await answer(`lineage?of=${encodeURIComponent(id)}`);
  if (!lineage) return;
  byId("lineage").hidden = false;
  const more = lineage.more ? `\n... ${lineage.more} more lines` : "";
  setText(byId("lineage"), lineage.lines.join("\n") + more);
}
