// Holds the page together: which run is shown, and the stream of what changes.
import { byId, setText } from "./dom.js";
import { showRuns } from "./runs.js";
import { askForCheckpoint, askToStop, showHead } from "./head.js";
import { showGmis, showLayout } from "./layout.js";
import { forgetCurves, resizeCurves, redrawAll, showAxes, takeCurves } from "./curves.js";
import { drawTime, forgetTime, takeTime } from "./time.js";
import { offerLogs, showLog } from "./log.js";
import { resizeTrials, showTrials } from "./trials.js";
import { forgetRecorded, listen } from "./recorded.js";

const AGAIN_MS = 3000; // as browsers wait before they open a stream again

const wanted = () => new URLSearchParams(window.location.hash.slice(1)).get("run");

let run = null; // its id
let gmi = 0; // whose log is shown
let chosen = wanted() !== null; // by the user; else the stream is of the newest run
let stream = null;
let list = null;

function pick(id) {
  window.location.hash = `run=${id}`;
}

function show(id) {
  run = id;
  gmi = 0;
  forgetCurves();
  forgetTime();
  forgetRecorded(id);
  byId("run").hidden = true;
  setText(byId("asked"), "");
}

const handlers = {
  runs(data) {
    list = data;
    const newest = data.runs[0]?.id ?? null;
    if (!chosen && newest !== run) show(newest);
    showRuns(data, run, pick);
  },
  trials: showTrials,
  layout(layout) {
    byId("run").hidden = false;
    showLayout(layout);
    offerLogs(layout, gmi, (id) => { gmi = id; connect(); });
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
  const of = chosen ? `run=${encodeURIComponent(run)}&` : "";
  const opened = new EventSource(`/events?${of}gmi=${gmi}`);
  stream = opened;
  opened.onopen = () => status("live", "running");
  opened.onerror = () => {
    if (stream !== opened) return;
    if (opened.readyState === EventSource.CLOSED) refused(opened);
    else status("lost, trying again", "failed");
  };
  for (const [name, handle] of Object.entries(handlers)) {
    opened.addEventListener(name, (event) => { if (stream === opened) handle(JSON.parse(event.data)); });
  }
}

// Asks why a stream was refused, which it does not tell, and opens it again, which it does not do.
async function refused(opened) {
  const asking = new AbortController();
  const code = await fetch(opened.url, { signal: asking.signal }).then((answer) => answer.status, () => 0);
  asking.abort();
  if (stream !== opened) return;
  if (code === 401) { status("over: open the link that gmi-drl page prints", "failed"); return; }
  if (code === 404) chosen = false; // the run is gone
  else status(code === 503 ? "too many look on, trying again" : "lost, trying again", "failed");
  setTimeout(() => {
    if (stream === opened && !document.hidden) connect();
  }, code === 404 ? 0 : AGAIN_MS);
}

function status(text, kind) {
  const badge = byId("link");
  setText(badge, text);
  badge.className = `badge ${kind}`;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.close(); status("paused", ""); } else connect(); // costs nothing unseen
});
function follow() { // the address
  if (wanted() === null || (chosen && wanted() === run)) return;
  chosen = true;
  show(wanted());
  if (list) showRuns(list, run, pick);
  connect();
}
window.addEventListener("hashchange", follow);
let resized = 0;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { resizeCurves(); resizeTrials(); drawTime(); }, 150);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
byId("save").addEventListener("click", () => askForCheckpoint(run));
byId("stop").addEventListener("click", () => askToStop(run));
listen();
showAxes();
if (chosen) follow(); else connect();
