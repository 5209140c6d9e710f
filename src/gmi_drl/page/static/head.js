// How one run stands: its figures, what is left, and what is wrong.
import { byId, clock, contentOf, count, fill, make, setText } from "./dom.js";

export function showHead(head, control) {
  setText(byId("run-name"), `${head.name}: ${[head.env, head.algorithm, head.mode].filter(Boolean).join(", ")}`);
  const figures = [
    ["state", head.state], ["iteration", count(head.iteration)],
    ["steps", head.total_steps ? `${count(head.steps)} of ${count(head.total_steps)}` : count(head.steps)],
    ["steps/s", count(head.steps_per_s)], ["return", head.return], ["evaluation", head.evaluation],
    ["checkpoint", head.checkpoint], ["time left", head.left], ["trained for", head.trained], ["started", clock(head.started)],
    ["seed", head.seed === null ? "" : String(head.seed)],
  ];
  fill(byId("figures"), ...figures.filter(([, value]) => value).map(([name, value]) => {
    const item = make("div");
    item.append(make("span", name, "what"), make("b", value, name === "state" && head.state));
    return item;
  }));
  const done = head.total_steps ? Math.min(1, (head.steps ?? 0) / head.total_steps) : 0;
  byId("progress").firstElementChild.style.width = `${100 * done}%`;
  const reading = head.unread_bytes > 1e6 ? [{ level: "note", text: `still reading: ${count(head.unread_bytes / 1e6)} MB of metrics to go` }] : [];
  fill(byId("alarms"), ...[...reading, ...head.alarms].map((alarm) => {
    const when = alarm.when ? `${clock(alarm.when)}  ` : "";
    return make("li", when + alarm.text, alarm.level);
  }));
  const resume = byId("resume");
  resume.hidden = !head.resume;
  fill(resume, "To go on: ", make("code", head.resume));
  byId("control").hidden = !(control && head.state === "running");
  byId("save").hidden = head.mode === "serving";
}

export async function askToStop(run) {
  if (!window.confirm("Stop this run? It ends after the iteration, and saves a checkpoint.")) return;
  await ask(run, "stop", "to stop");
}

export async function askForCheckpoint(run) {
  await ask(run, "checkpoint", "for a checkpoint");
}

async function ask(run, route, what) {
  const said = byId("asked");
  setText(said, "asking ...");
  try {
    const response = await fetch(`/runs/${encodeURIComponent(run)}/${route}`, { method: "POST", headers: { "X-GMI-DRL": "1" } });
    const answer = await contentOf(response);
    setText(said, answer.error ?? `process ${answer.asked} was asked ${what}`);
  } catch (error) {
    setText(said, `it could not be asked: ${error.message}`);
  }
}
