// Which backups were made, how old the last one is, and how the next one is made.
import { html } from "../vendor/preact-htm.js";
import { usePoll } from "../api.js";
import { age, bytes, compact, count, time } from "../format.js";
import { Card, Empty, Loading, Page, Stat, Table } from "../parts.js";

const OLD_MS = 7 * 86400000;

const whenOf = (row) => time(Date.parse(row.time)).replace(/\.\d+$/, "");

export function Backups() {
  const { data, error } = usePoll("backups", 15000);
  const last = data?.[0];
  const since = last && Math.max(0, Date.now() - Date.parse(last.time));
  return html`<${Page} title="Backups" error=${error} sub="What quorate backup has written. Whether it is still there, and whole, the cluster does not know: verify it.">
    ${!data ? !error && html`<${Loading} />` : html`
    ${last && html`<div class="stats">
      <${Stat} label="Last backup" value=${`${age(since)} ago`} title=${last.time} kind=${since > OLD_MS ? "warn" : ""} />
      <${Stat} label="Messages" value=${compact(last.messages)} title=${count(last.messages)} />
      <${Stat} label="Size" value=${bytes(last.bytes)} />
    </div>`}
    <${Card} flush title="Made" id="made">
      <${Table} label="Backups" keyOf=${(row) => row.time} rows=${data}
        empty=${html`<${Empty} title="No backup was made yet">Or one of an earlier release, which is not remembered.<//>`}
        columns=${[
          { key: "time", label: "As of", show: (row) => html`<span class="mono small">${whenOf(row)}</span>` },
          { key: "folder", label: "Folder", show: (row) => html`<span class="mono small">${row.folder}</span>` },
          { key: "host", label: "On", minor: true },
          { key: "messages", label: "Messages", num: true, show: (row) => html`<span title=${count(row.messages)}>${compact(row.messages)}</span>` },
          { key: "bytes", label: "Size", num: true, show: (row) => bytes(row.bytes) },
          { key: "user", label: "By", minor: true },
        ]} />
    <//>
    <${Card} title="Make one" id="make-one">
      <p>On any machine that reaches all nodes, as an administrator, into a folder that is new or empty:</p>
      <pre>${`quorate backup /backup/monday --url ${location.host}\nquorate backup verify /backup/monday`}</pre>
      <p class="muted small">All groups are of one moment: queues and messages, what consumers hold, definitions with hashes of passwords. Transient queues are not in it. <code>quorate restore</code> makes a new cluster out of it.</p>
    <//>`}
  <//>`;
}
