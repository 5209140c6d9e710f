// All runs: a table, the newest first.
import { byId, clock, count, fill, make, setText, table } from "./dom.js";

const COLUMNS = [
  { name: "run" }, { name: "state" }, { name: "environment" }, { name: "started" },
  { name: "iteration", number: true }, { name: "steps", number: true }, { name: "return", number: true },
  { name: "evaluation", number: true }, { name: "steps/s", number: true }, { name: "seed", number: true },
];

export function showRuns(data, picked, pick) {
  setText(byId("where"), data.folder);
  const rows = data.runs.map((run) => {
    const name = make("button", run.path === "." ? run.name : run.path, "name");
    name.type = "button";
    name.addEventListener("click", () => pick(run.id));
    return [
      name, make("span", run.state, run.state), run.env, clock(run.started), count(run.iteration),
      count(run.steps), run.return_mean, run.eval_return, run.steps_per_s, run.seed === null ? "" : String(run.seed),
    ];
  });
  const all = table(COLUMNS, rows);
  data.runs.forEach((run, place) => all.tBodies[0].rows[place].classList.toggle("picked", run.id === picked));
  fill(byId("runs-table"), all);
  const notes = [];
  if (!data.runs.length) notes.push("No runs yet: gmi-drl launch CONFIG makes one, and it will be here.");
  if (data.more) notes.push(`${data.more} older ones are not shown.`);
  if (data.outside) notes.push(`${data.outside} folders are links that lead elsewhere, and are not shown.`);
  setText(byId("runs-note"), notes.join(" "));
}
