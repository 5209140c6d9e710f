// The end of a GMI's log.
import { byId, fill, make, setText } from "./dom.js";

// Lists the GMIs that have a log; the one that is shown is selected, or the first if it is gone.
export function offerLogs(layout, shown, pick) {
  const select = byId("log-gmi");
  const ids = layout.devices.flatMap((device) => device.gmis.map((gmi) => gmi.id)).sort((one, other) => one - other);
  fill(select, ...ids.map((id) => { const option = make("option", `GMI ${id}`); option.value = String(id); return option; }));
  select.onchange = () => pick(Number(select.value));
  if (ids.includes(shown)) select.value = String(shown);
  else if (ids.length) pick(ids[0]);
}

export function showLog(log) {
  setText(byId("log-note"), log.note || (log.cut ? "its end" : ""));
  const text = byId("log-text");
  const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
  setText(text, log.text);
  if (atEnd) text.scrollTop = text.scrollHeight;
}
