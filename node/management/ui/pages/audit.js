// Who did what to the cluster, from where, and whether it was let.
import { html, useState } from "../vendor/preact-htm.js";
import { query, usePoll } from "../api.js";
import { time } from "../format.js";
import { Badge, Card, Empty, Page, Pager, Table } from "../parts.js";

const SIZE = 50;
const KIND = { ok: "good", refused: "warn", failed: "bad", unknown: "warn" };

export function AuditLog() {
  const [view, setView] = useState({ name: "", sort: "time", reverse: true, page: 1 });
  const change = (next) => setView((old) => ({ ...old, page: 1, ...next }));
  const { data, error } = usePoll(`audit?${query({ page: view.page, page_size: SIZE, name: view.name, sort: view.sort, sort_reverse: view.reverse })}`, 5000);
  return html`<${Page} title="Audit log" error=${error} sub="What the nodes remember since their starts; audit_file keeps all of it.">
    <${Card} flush>
      <div class="filters row"><input type="search" aria-label="Filter" placeholder="Who, what or outcome" value=${view.name} onInput=${(e) => change({ name: e.target.value })} /></div>
      <${Table} label="Audit log" keyOf=${(row) => `${row.time} ${row.node} ${row.what} ${row.target}`} rows=${data?.items} sort=${view.sort} reverse=${view.reverse}
        onSort=${(sort, reverse) => change({ sort, reverse })}
        empty=${html`<${Empty} title="Nothing here">Each change of users, policies, queues or nodes is a line here, and each request that was refused.<//>`}
        columns=${[
          { key: "time", label: "Time", sort: "time", show: (row) => html`<span class="mono small">${time(Date.parse(row.time))}</span>` },
          { key: "who", label: "Who", sort: "who", show: (row) => html`<strong>${row.who || "–"}</strong>` },
          { key: "from", label: "From", minor: true, sort: "from", show: (row) => row.from || "–" },
          { key: "what", label: "What", sort: "what", show: (row) => html`<span class="mono small">${row.what.split(" ")[0]} ${row.target}</span>${row.times && html` <small class="muted">× ${row.times}</small>`}` },
          { key: "outcome", label: "Outcome", sort: "outcome", show: (row) => html`<${Badge} kind=${KIND[row.outcome]}>${row.outcome}<//> <small class="muted">${row.reason ?? ""}</small>` },
          { key: "node", label: "At node", minor: true, sort: "node" },
        ]} />
      <${Pager} data=${data} page=${view.page} go=${(page) => setView((old) => ({ ...old, page }))} />
    <//>
  <//>`;
}
