// Clients: their connections and channels.
import { html, useState } from "../vendor/preact-htm.js";
import { at, del, query, usePoll } from "../api.js";
import { age, count } from "../format.js";
import { Badge, Card, Dialog, Empty, Page, Pager, Table, Tabs, openDialog } from "../parts.js";

const SIZE = 50;

const COLUMNS = {
  connections: (close) => [
    { key: "name", label: "Name", sort: "name", show: (row) => html`<span class="mono small">${row.client_properties?.connection_name ?? row.name}</span>` },
    { key: "user", label: "User", sort: "user" },
    { key: "protocol", label: "Protocol", sort: "protocol", show: (row) => html`<${Badge}>${row.protocol}<//>` },
    { key: "state", label: "State", minor: true, sort: "state", show: (row) => html`<${Badge} kind=${row.state === "running" ? "good" : "warn"}>${row.state ?? "–"}<//>` },
    { key: "vhost", label: "Vhost", minor: true, sort: "vhost" },
    { key: "node", label: "Node", minor: true, sort: "node" },
    { key: "channels", label: "Channels", num: true, minor: true, sort: "channels", show: (row) => count(row.channels) },
    { key: "age", label: "Age", num: true, minor: true, sort: "connected_at", show: (row) => (row.connected_at ? age(Date.now() - row.connected_at) : "–") },
    { key: "do", label: "", num: true, show: (row) => html`<button class="danger small" onClick=${() => close(row)}>Close</button>` },
  ],
  channels: () => [
    { key: "name", label: "Name", sort: "name", show: (row) => html`<span class="mono small">${row.name}</span>` },
    { key: "user", label: "User", sort: "user" },
    { key: "mode", label: "Mode", minor: true, show: (row) => html`${row.confirm && html`<${Badge}>confirms<//>`} ${row.transactional && html`<${Badge}>transactions<//>`}` },
    { key: "consumers", label: "Consumers", num: true, sort: "consumer_count", show: (row) => count(row.consumer_count) },
    { key: "unacked", label: "Unacked", num: true, sort: "messages_unacknowledged", show: (row) => count(row.messages_unacknowledged) },
    { key: "prefetch", label: "Prefetch", num: true, minor: true, sort: "prefetch_count", show: (row) => row.prefetch_count || "no limit" },
    { key: "node", label: "Node", minor: true, sort: "node" },
  ],
};

export function Connections({ params }) {
  const [what, setWhat] = useState(params.what ?? "connections");
  const [view, setView] = useState({ name: "", sort: "name", reverse: false, page: 1 });
  const { data, error, refresh, stale } = usePoll(`${what}?${query({ page: view.page, page_size: SIZE, name: view.name, sort: view.sort, sort_reverse: view.reverse })}`, 5000);
  const close = (row) => openDialog(html`<${Dialog} title="Close the connection" danger action="Close" done=${refresh}
    text=${`${row.name}, of user ${row.user}. Most clients connect again by themselves; what they have not acknowledged goes back to its queues.`}
    run=${async () => { await del(`connections/${at(row.name)}`); return "It was closed."; }} />`);
  const go = (next) => {
    setWhat(next);
    setView({ name: "", sort: "name", reverse: false, page: 1 });
  };
  return html`<${Page} title="Connections" error=${error} actions=${html`<${Tabs} label="What is listed" now=${what} go=${go} tabs=${[["connections", "Connections"], ["channels", "Channels"]]} />`}>
    <${Card} flush>
      <div class="filters row"><input type="search" aria-label="Filter by name" placeholder="Filter by name" value=${view.name} onInput=${(e) => setView((old) => ({ ...old, name: e.target.value, page: 1 }))} /></div>
      <${Table} label=${what} keyOf=${(row) => row.name} rows=${stale ? null : data?.items} sort=${view.sort} reverse=${view.reverse}
        onSort=${(sort, reverse) => setView((old) => ({ ...old, sort, reverse, page: 1 }))} columns=${COLUMNS[what](close)}
        empty=${html`<${Empty} title=${view.name ? "None of that name" : `No ${what}`}>${what === "channels" ? "AMQP clients have them." : "Connect with any AMQP 0-9-1, NATS or native client."}<//>`} />
      <${Pager} data=${data} page=${view.page} go=${(page) => setView((old) => ({ ...old, page }))} />
    <//>
  <//>`;
}
