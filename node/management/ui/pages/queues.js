// All queues: filtered, sorted and cut into pages by the server.
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { at, put, query, usePoll } from "../api.js";
import { age, compact, count, rate } from "../format.js";
import { Badge, Card, Dialog, Empty, Page, Pager, Table, openDialog, parsed } from "../parts.js";
import { queueLink } from "./overview.js";

const SIZE = 50;
const COLUMNS = [
  "name", "vhost", "type", "state", "leader", "node", "policy", "consumers", "messages", "messages_ready",
  "messages_unacknowledged", "messages_delayed", "oldest_ready_age", "slo_oldest_age", "message_stats.publish_details.rate",
  "message_stats.deliver_get_details.rate", "shards", "arguments.x-shard-of",
].join();

/** Whether it shares its messages with others. */
export function Split({ of: { vhost, shards, arguments: given } }) {
  const whole = given?.["x-shard-of"];
  if (shards) return html` <${Badge}>${shards.length} shards<//>`;
  return whole && html` <small class="muted">shard of <a href=${`#/queues/${at(vhost, whole)}`}>${whole}</a></small>`;
}

const kindOfAge = (row) => row.slo_oldest_age != null && row.oldest_ready_age > row.slo_oldest_age ? "bad" : "";

export function useVhosts() {
  return (usePoll("vhosts?columns=name", 60000).data ?? [{ name: "/" }]).map((each) => each.name);
}

export function declare(vhosts, done) {
  openDialog(html`<${Dialog} title="Declare a queue" action="Declare" done=${done}
    text="A durable queue is replicated by Raft, and keeps its messages when nodes fail."
    fields=${[
      { key: "name", label: "Name", required: true },
      { key: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhosts[0] },
      { key: "durable", label: "Durable (replicated)", kind: "check", value: true },
      { key: "arguments", label: "Arguments (JSON)", kind: "area", rows: 3, hint: 'Such as {"x-max-length": 10000, "x-dead-letter-exchange": ""}' },
    ]}
    run=${async ({ name, vhost, durable, arguments: given }) => {
      await put(`queues/${at(vhost, name)}`, { durable, auto_delete: false, arguments: parsed(given, "Arguments") });
      return `Queue ${name} is there.`;
    }} />`);
}

export function Queues({ params }) {
  const [view, setView] = useState({ name: "", vhost: "", sort: "name", reverse: false, page: 1, ...params, reverse: params.sort_reverse === "true", page: 1 });
  const [typed, setTyped] = useState(view.name);
  const change = (next) => setView((old) => ({ ...old, page: 1, ...next }));
  useEffect(() => {
    const timer = setTimeout(() => typed !== view.name && change({ name: typed }), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  useEffect(() => {
    const kept = query({ name: view.name, vhost: view.vhost, sort: view.sort === "name" ? "" : view.sort, sort_reverse: view.reverse });
    history.replaceState(null, "", `#/queues${kept && `?${kept}`}`);
  }, [view.name, view.vhost, view.sort, view.reverse]);
  const vhosts = useVhosts();
  const path = `queues${view.vhost && `/${at(view.vhost)}`}?${query({
    page: view.page, page_size: SIZE, name: view.name, sort: view.sort, sort_reverse: view.reverse, columns: COLUMNS,
  })}`;
  const { data, error, refresh } = usePoll(path, 5000);
  useEffect(() => {
    if (error?.status === 400 && view.page > 1) change({});
  }, [error]);
  const several = vhosts.length > 1;
  return html`<${Page} title="Queues" error=${error} actions=${html`<button class="primary" onClick=${() => declare(vhosts, refresh)}>Declare a queue</button>`}>
    <${Card} flush>
      <div class="filters row">
        <input type="search" aria-label="Filter by name" placeholder="Filter by name" value=${typed} onInput=${(e) => setTyped(e.target.value)} />
        ${several && html`<select aria-label="Virtual host" value=${view.vhost} onChange=${(e) => change({ vhost: e.target.value })}>
          <option value="">All virtual hosts</option>${vhosts.map((name) => html`<option value=${name}>${name}</option>`)}</select>`}
      </div>
      <${Table} label="Queues" keyOf=${(row) => `${row.vhost}/${row.name}`} rows=${data?.items} sort=${view.sort} reverse=${view.reverse}
        onSort=${(sort, reverse) => change({ sort, reverse })}
        empty=${view.name
          ? html`<${Empty} title=${`No queue has “${view.name}” in its name`}>Clear the filter to see all of them.<//>`
          : html`<${Empty} title="No queues yet">Declare one here, or run <code>quorate publish orders --count 1000</code>, which makes it.<//>`}
        columns=${[
          { key: "name", label: "Name", sort: "name", show: (row) => html`${queueLink(row)}${several && html` <small class="muted">${row.vhost}</small>`}${row.policy && html` <${Badge}>${row.policy}<//>`}<${Split} of=${row} />` },
          { key: "state", label: "State", minor: true, show: (row) => html`<${Badge} kind=${row.state === "running" ? "good" : "bad"}>${row.state}<//> ${row.type !== "quorum" && html`<${Badge}>${row.type === "stream" ? "stream" : "transient"}<//>`}` },
          { key: "age", label: "Oldest", num: true, sort: "oldest_ready_age", show: (row) => html`<span class=${kindOfAge(row)}>${row.messages_ready ? age(row.oldest_ready_age) : "–"}</span>` },
          { key: "ready", label: "Ready", num: true, sort: "messages_ready", show: (row) => html`<span title=${count(row.messages_ready)}>${compact(row.messages_ready)}</span>` },
          { key: "unacked", label: "Unacked", num: true, sort: "messages_unacknowledged", show: (row) => compact(row.messages_unacknowledged) },
          { key: "in", label: "In /s", num: true, sort: "message_stats.publish_details.rate", show: (row) => rate(row.message_stats?.publish_details?.rate ?? 0) },
          { key: "out", label: "Out /s", num: true, minor: true, sort: "message_stats.deliver_get_details.rate", show: (row) => rate(row.message_stats?.deliver_get_details?.rate ?? 0) },
          { key: "consumers", label: "Consumers", num: true, minor: true, sort: "consumers", show: (row) => count(row.consumers) },
          { key: "leader", label: "Leader", minor: true, sort: "leader", show: (row) => row.leader ?? row.node ?? "–" },
        ]} />
      <${Pager} data=${data} page=${view.page} go=${(page) => setView((old) => ({ ...old, page }))} />
    <//>
  <//>`;
}
