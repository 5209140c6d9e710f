// The end of a GMI's log.
import { byId, fill, make, setText } from "./dom.js";

export function offerLogs(layout, pick) {
  const select = byId("log-gmi");
  const ids = layout.devices.flatMap((device) => device.gmis.map((gmi) => gmi.id)).sort((one, other) => one - other);
  const before = select.value;
  fill(select, ...ids.map((id) => { const option = make("option", `GMI ${id}`); option.value = String(id); return option; }));
  if (ids.map(String).includes(before)) select.value = before;
  select.onchange = () => pick(Number(select.value));
}

export function showLog(log) {
  setText(byId("log-note"), log.note || (log.cut ? "its end" : ""));
  const text = byId("log-text");
  const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
  setText(text, log.text);
  if (atEnd) text.scrollTop = text.scrollHeight;
}
