// Raft groups: who has copies, who leads, and how far the others are behind.
import { html } from "../vendor/preact-htm.js";
import { at, post, put, usePoll } from "../api.js";
import { count, plural } from "../format.js";
import { Badge, Card, Dialog, Page, Table, openDialog } from "../parts.js";

const worst = (row) => Math.max(0, ...Object.values(row.lag ?? {}));

function state(row) {
  if (!row.leader) return html`<${Badge} kind="bad">no leader<//>`;
  if (row.moving) return html`<${Badge} kind="warn">moving<//>`;
  if (row.voters.length < row.wanted) return html`<${Badge} kind="bad">too few copies<//>`;
  return html`<${Badge} kind="good">healthy<//>`;
}

export function Groups({ user }) {
  const { data, error, refresh } = usePoll("groups", 3000);
  const admin = user.tags.includes("administrator");
  const move = (row) => openDialog(html`<${Dialog} title=${`Members of ${row.name}`} action="Move" danger done=${refresh}
    text="New members get a copy first; then those that are not named any more give theirs up. Messages go on meanwhile."
    fields=${[{ key: "members", label: "Nodes", value: row.members.join(", "), required: true }, { key: "fewer", label: "Fewer copies than before are meant", kind: "check" }]}
    run=${async ({ members, fewer }) => {
      await put(`groups/${at(row.name)}/members`, { members: members.split(/[\s,]+/).filter(Boolean), ...(fewer && { fewer }) });
      return `${row.name} is on its way.`;
    }} />`);
  const spread = () => openDialog(html`<${Dialog} title="Spread groups over nodes" action="Spread" danger done=${refresh}
    text="Moves as few copies as it takes for nodes to hold about as many. While a node is down nothing is moved."
    run=${async () => { const { moves } = await post("groups/spread"); return moves.length ? `${plural(moves.length, "group")} on the move.` : "They are spread already: nothing moves."; }} />`);
  return html`<${Page} title="Groups" error=${error} sub="A queue lives in one Raft group: its leader serves it, its members have all its messages."
    actions=${admin && html`<button onClick=${spread}>Spread</button>`}>
    <${Card} flush><${Table} label="Groups" keyOf=${(row) => row.id} rows=${data} columns=${[
      { key: "name", label: "Group", sort: "name", show: (row) => html`<strong>${row.name}</strong>` },
      { key: "state", label: "State", show: state },
      { key: "leader", label: "Leader", sort: "leader", show: (row) => row.leader ?? "–" },
      { key: "members", label: "Members", minor: true, show: (row) => row.members.map((name) => html`<${Badge} key=${name} kind=${name === row.leader ? "accent" : row.voters.includes(name) ? "" : "warn"}>${name}<//> `) },
      { key: "last", label: "Last entry", num: true, minor: true, sort: "last", show: (row) => count(row.last) },
      { key: "lag", label: "Lag", num: true, show: (row) => html`<span class=${worst(row) > 1000 ? "bad" : ""} title=${Object.entries(row.lag ?? {}).map(([name, n]) => `${name}: ${n}`).join(", ")}>${count(worst(row))}</span>` },
      { key: "do", label: "", num: true, show: (row) => admin && row.id !== 0 && html`<button class="small" onClick=${() => move(row)}>Members</button>` },
    ]} /><//>
  <//>`;
}
