// What a person wants to know first: is anything wrong, and how much goes through.
import { html } from "../vendor/preact-htm.js";
import { at, query, usePoll } from "../api.js";
import { LengthChart, RateChart } from "../chart.js";
import { age, bytes, compact, count, rate } from "../format.js";
import { Badge, Bar, Card, Empty, Page, Stat, Table, withCode } from "../parts.js";

const STATS = ["publish", "deliver_get", "ack", "redeliver"].map((name) => `message_stats.${name}_details`);
const TOTALS = query({
  columns: [...STATS, "queue_totals", "object_totals", "cluster_name", "node"].join(),
  msg_rates_age: 600, msg_rates_incr: 5, lengths_age: 600, lengths_incr: 5,
});
const OLDEST = query({
  page: 1, page_size: 6, sort: "oldest_ready_age", sort_reverse: true,
  columns: "name,vhost,messages_ready,messages_unacknowledged,consumers,oldest_ready_age,slo_oldest_age,state",
});
const SHOWN = 8;

export const queueLink = (row) => html`<a href=${`#/queues/${at(row.vhost, row.name)}`}>${row.name}</a>`;

function Attention({ findings }) {
  if (!findings.length) return html`<p class="note good">✓ Nothing needs attention: all nodes are up, all groups have a leader, no queue is left alone.</p>`;
  return html`<ul class="attention">${findings.slice(0, SHOWN).map((each) => html`<li key=${each.what} class=${each.level === "problem" ? "bad" : "warn"}>
    <a href=${`#/${at(...each.about)}`}>${each.what}</a><span class="muted">Next: ${withCode(each.next)}</span></li>`)}
    ${findings.length > SHOWN && html`<li class="warn"><span class="muted">And ${findings.length - SHOWN} more: <code>quorate doctor</code> shows all.</span></li>`}</ul>`;
}

export function Overview({ user }) {
  const sees = user.tags.some((tag) => tag === "administrator" || tag === "monitoring");
  const totals = usePoll(`overview?${TOTALS}`, 5000);
  const nodes = usePoll(sees ? "nodes" : null, 5000);
  const groups = usePoll(sees ? "groups" : null, 5000);
  const oldest = usePoll(`queues?${OLDEST}`, 15000);
  const attention = usePoll("attention", 15000);
  const { queue_totals: length = {}, message_stats: stats = {}, object_totals: objects = {} } = totals.data ?? {};
  const led = {};
  for (const group of groups.data ?? []) led[group.leader] = (led[group.leader] ?? 0) + 1;
  const waiting = (oldest.data?.items ?? []).filter((row) => row.messages_ready);
  const now = (name) => stats[`${name}_details`]?.rate;
  return html`<${Page} title="Overview" sub=${totals.data && html`Cluster <strong>${totals.data.cluster_name}</strong>, as ${totals.data.node} sees it`} error=${totals.error}>
    ${totals.data && html`${attention.data && html`<${Attention} findings=${attention.data.findings} />`}
    <div class="stats">
      <${Stat} label="Published" value=${rate(now("publish"))} unit="/s" />
      <${Stat} label="Delivered" value=${rate(now("deliver_get"))} unit="/s" />
      <${Stat} label="Acknowledged" value=${rate(now("ack"))} unit="/s" />
      <${Stat} label="Ready" value=${compact(length.messages_ready)} title=${count(length.messages_ready)} />
      <${Stat} label="Unacknowledged" value=${compact(length.messages_unacknowledged)} title=${count(length.messages_unacknowledged)} />
      <${Stat} label="Queues" value=${compact(objects.queues)} />
      <${Stat} label="Consumers" value=${compact(objects.consumers)} />
      <${Stat} label="Connections" value=${compact(objects.connections)} />
    </div>
    <div class="two">
      <${Card} title="Rates" id="rates"><${RateChart} stats=${stats} label="Messages a second in the last ten minutes" /><//>
      <${Card} title="Messages that wait" id="waiting"><${LengthChart} of=${length} label="Messages in queues in the last ten minutes" /><//>
    </div>`}
    <div class="two">
      ${sees && html`<${Card} title="Nodes" id="nodes" flush><${Table} label="Nodes" keyOf=${(row) => row.name} rows=${nodes.data} columns=${[
        { key: "name", label: "Node", show: (row) => html`<a href="#/nodes">${row.name}</a>` },
        { key: "state", label: "", show: (row) => html`<${Badge} kind=${row.running ? (row.being_drained ? "warn" : "good") : "bad"}>${row.running ? (row.being_drained ? "drained" : "up") : "down"}<//>` },
        { key: "leads", label: "Leads", num: true, show: (row) => html`${led[row.name] ?? 0}<${Bar} value=${led[row.name] ?? 0} max=${groups.data?.length} kind="plain" label=${`leads ${led[row.name] ?? 0} groups`} />` },
        { key: "mem", label: "Memory", num: true, show: (row) => row.running ? html`${bytes(row.mem_used)}<${Bar} value=${row.mem_used} max=${row.mem_limit} label="memory used" />` : "–" },
        { key: "disk", label: "Disk free", num: true, minor: true, show: (row) => (row.running ? bytes(row.disk_free) : "–") },
      ]} /><//>`}
      <${Card} title="Waiting longest" id="longest" flush actions=${html`<a href="#/queues?sort=oldest_ready_age&sort_reverse=true">All queues</a>`}>
        <${Table} label="Queues whose messages wait longest" keyOf=${(row) => `${row.vhost}/${row.name}`} rows=${oldest.data && waiting}
          empty=${html`<${Empty} title="No message waits">Publish one: <a href="#/queues">open a queue</a>, or run <code>quorate publish orders --count 1000</code>.<//>`}
          columns=${[
            { key: "name", label: "Queue", show: queueLink },
            { key: "age", label: "Oldest", num: true, show: (row) => age(row.oldest_ready_age) },
            { key: "ready", label: "Ready", num: true, show: (row) => count(row.messages_ready) },
            { key: "consumers", label: "Consumers", num: true, show: (row) => count(row.consumers) },
          ]} />
      <//>
    </div>
  <//>`;
}
