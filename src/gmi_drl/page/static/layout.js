// The layout to scale: each GMI on its part of its device, filled as far as it computes.
import { byId, fill, keyOf, make, cssColour, percent, setText, table } from "./dom.js";

const ROLES = ["simulator", "agent", "trainer"];
const roleClass = (role) => (ROLES.includes(role) ? role : "other");
let parts = new Map(); // of each GMI: what changes
let specs = new Map();

export function showLayout(layout) {
  parts = new Map();
  specs = new Map();
  const devices = layout.devices.map((device) => {
    const shared = device.gmis.filter((gmi) => gmi.shared);
    // Those that share a device without limits have a lane each, as wide as it.
    const lanes = shared.length ? device.gmis.map((gmi) => [gmi]) : [device.gmis];
    const box = make("div", "", "device");
    const title = make("div", "");
    title.append(make("b", device.name), make("span", `  ${device.what}`, "pale"));
    box.append(title, ...lanes.map((gmis) => lane(gmis, shared.length > 0)));
    if (!device.gmis.length) box.append(make("div", "no GMI", "pale"));
    return box;
  });
  const note = make("p", "", "pale");
  note.append(
    `${layout.template ?? "no layout"}: as wide as a GMI's share of the device, filled as far as it computes and does not wait. `,
    ...ROLES.map((role) => keyOf(role, cssColour(`--${role}`))),
  );
  fill(byId("devices"), note, ...devices);
}

function lane(gmis, thin) {
  const row = make("div", "", "lane", thin && "thin");
  for (const gmi of gmis) {
    const box = make("div", "", "gmi");
    box.style.left = `${100 * gmi.begin}%`;
    box.style.width = `${100 * gmi.width}%`;
    const use = make("div", "", "use", roleClass(gmi.roles[gmi.roles.length - 1]));
    const roles = make("div", "", "roles");
    roles.append(...gmi.roles.map((role) => make("i", "", roleClass(role))));
    const name = make("span", `GMI ${gmi.id}`);
    const doing = make("span");
    const held = make("span");
    box.append(use, name, doing, held, roles);
    row.append(box);
    parts.set(gmi.id, { box, use, name, doing, held });
    specs.set(gmi.id, gmi);
  }
  return row;
}

const COLUMNS = [
  { name: "GMI", number: true }, { name: "roles" }, { name: "share" }, { name: "environments", number: true },
  { name: "computes", number: true }, { name: "memory at most" }, { name: "restarts", number: true },
];

export function showGmis(gmis) {
  const rows = [];
  for (const gmi of gmis) {
    const part = parts.get(gmi.id);
    const spec = specs.get(gmi.id);
    if (!part) continue;
    const used = gmi.use === null ? "" : `computes ${percent(gmi.use)}`;
    const again = gmi.restarts ? `, restarted ${gmi.restarts}x` : "";
    part.use.style.height = gmi.use === null ? "0" : `${100 * gmi.use}%`;
    setText(part.name, `GMI ${gmi.id}${again}`);
    setText(part.doing, used);
    const held = gmi.share ? `${gmi.held || "?"} of ${gmi.share}` : gmi.held;
    setText(part.held, held);
    part.box.title = `GMI ${gmi.id}: ${spec.roles.join(" + ")}, ${spec.share}, ${used}`;
    rows.push([
      String(gmi.id), spec.roles.join(" + "), spec.share + (spec.shared ? ", shared" : ""),
      spec.num_env ? spec.num_env.toLocaleString("en") : "", percent(gmi.use), held, String(gmi.restarts),
    ]);
  }
  fill(byId("gmis"), table(COLUMNS, rows));
}
