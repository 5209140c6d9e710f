// Holds the page together: which run is shown, and the stream of what changes.
import { byId, setText } from "./dom.js";
import { showRuns } from "./runs.js";
import { askForCheckpoint, askToStop, showHead } from "./head.js";
import { showGmis, showLayout } from "./layout.js";
import { drawSoon, forgetCurves, resizeCurves, redrawAll, showAxes, takeCurves } from "./curves.js";
import { drawTime, forgetTime, takeTime } from "./time.js";
import { offerLogs, showLog } from "./log.js";
import { showTrials } from "./trials.js";
import { forgetRecorded, listen } from "./recorded.js";

let run = null; // its id
let gmi = 0; // whose log is shown
let chosen = false; // by the user; else the newest run is shown
let stream = null;
let list = null;

const wanted = () => new URLSearchParams(window.location.hash.slice(1)).get("run");

function pick(id) {
  chosen = true;
  window.location.hash = `run=${id}`;
}

function show(id) {
  if (id === run) return;
  run = id;
  gmi = 0;
  forgetCurves();
  forgetTime();
  forgetRecorded(id);
  byId("run").hidden = true;
  setText(byId("asked"), "");
  if (list) showRuns(list, run, pick);
  connect();
}

const handlers = {
  runs(data) {
    list = data;
    const ids = data.runs.map((each) => each.id);
    if (!chosen && wanted() && ids.includes(wanted())) chosen = true;
    showRuns(data, run, pick);
    if (chosen && wanted() !== run && ids.includes(wanted())) show(wanted());
    else if (!chosen && ids.length && run !== ids[0]) show(ids[0]);
  },
  trials: showTrials,
  layout(layout) {
    byId("run").hidden = false;
    showLayout(layout);
    offerLogs(layout, (id) => { gmi = id; connect(); });
  },
  run(data) {
    byId("run").hidden = false;
    showHead(data.head, list?.control);
    showGmis(data.gmis);
    document.title = `${data.head.state} ${data.head.name} - gmi-drl`;
  },
  curves(change) { takeCurves(change); takeTime(change); },
  log: showLog,
  gone() { byId("run").hidden = true; },
};

function connect() {
  stream?.close();
  const query = run === null ? "" : `?run=${encodeURIComponent(run)}&gmi=${gmi}`;
  const opened = new EventSource(`/events${query}`);
  stream = opened;
  opened.onopen = () => status("live", "running");
  opened.onerror = () => {
    if (stream !== opened) return;
    const over = opened.readyState === EventSource.CLOSED;
    status(over ? "over: open the link that gmi-drl page prints" : "lost, trying again", "failed");
  };
  for (const [name, handle] of Object.entries(handlers)) {
    opened.addEventListener(name, (event) => { if (stream === opened) handle(JSON.parse(event.data)); });
  }
}

function status(text, kind) {
  const badge = byId("link");
  setText(badge, text);
  badge.className = `badge ${kind}`;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.close(); status("paused", ""); } else connect(); // costs nothing unseen
});
window.addEventListener("hashchange", () => { chosen = true; if (wanted()) show(wanted()); });
let resized = 0;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { resizeCurves(); drawTime(); }, 150);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
byId("save").addEventListener("click", () => askForCheckpoint(run));
byId("stop").addEventListener("click", () => askToStop(run));
listen();
showAxes();
connect();
