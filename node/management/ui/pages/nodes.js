// Nodes: what they use, and whether they serve.
import { html } from "../vendor/preact-htm.js";
import { at, del, put, query, usePoll } from "../api.js";
import { age, bytes, count, rate } from "../format.js";
import { Badge, Bar, Card, Dialog, Facts, Loading, Page, Stat, openDialog, toast } from "../parts.js";
import { Chart, lengths } from "../chart.js";

const PATH = `nodes?${query({ node_stats_age: 600, node_stats_incr: 10 })}`;

/** Before it started there is nothing to show. */
function sinceStart({ times, values }) {
  const began = values.findIndex((value) => value > 0);
  return began < 0 ? { times: [], values: [] } : { times: times.slice(began), values: values.slice(began) };
}

function Node({ node, led, groups, admin, again }) {
  const drain = () => openDialog(html`<${Dialog} title=${`Drain ${node.name}`} danger action="Drain" done=${again}
    text="It hands over what it leads and lets its clients go, so that it can be stopped. Nothing is lost. Take it back with “Serve again”."
    fields=${[{ key: "timeout", label: "Seconds at most", kind: "number", value: 60 }]}
    run=${async ({ timeout }) => { await put(`nodes/${at(node.name)}/drain`, { timeout_ms: 1000 * Number(timeout) }); return `${node.name} is drained: it can be stopped.`; }} />`);
  const undo = async () => {
    try {
      await del(`nodes/${at(node.name)}/drain`);
      toast(`${node.name} serves again.`);
    } catch (failed) {
      toast(failed.message, "bad");
    }
    again();
  };
  const memory = sinceStart(lengths(node.mem_used_details));
  return html`<${Card} id=${`node-${node.name}`} title=${html`${node.name} <${Badge} kind=${!node.running ? "bad" : node.being_drained ? "warn" : "good"}>${!node.running ? "down" : node.being_drained ? "drained" : "up"}<//>`}
    actions=${admin && (node.being_drained ? html`<button onClick=${undo}>Serve again</button>` : html`<button disabled=${!node.running} onClick=${drain}>Drain</button>`)}>
    ${!node.running ? html`<p class="note bad">Nobody hears from it. Start it, or remove it for good: <code>quorate node remove ${node.name}</code></p>` : html`
    <div class="stats tight">
      <${Stat} label="Leads" value=${led} unit=${`of ${groups}`} />
      <${Stat} label="Memory" value=${bytes(node.mem_used)} kind=${node.mem_alarm ? "bad" : ""} />
      <${Stat} label="Disk free" value=${bytes(node.disk_free)} kind=${node.disk_free_alarm ? "bad" : ""} />
      ${node.fsync_ms != null && html`<${Stat} label="fsync" value=${age(node.fsync_ms)} title="The mean since the node started" />`}
      ${node.loop_lag_ms != null && html`<${Stat} label="Loop lag" value=${age(node.loop_lag_ms)} title="How late its event loop was, in the mean since the node started" />`}
      <${Stat} label="Connections" value=${count(node.sockets_used)} />
      <${Stat} label="Up for" value=${age(node.uptime)} />
    </div>
    <div class="meter"><span>Memory</span><${Bar} value=${node.mem_used} max=${node.mem_limit} label="memory used" /><small class="muted">of ${bytes(node.mem_limit)}</small></div>
    <div class="meter"><span>Files</span><${Bar} value=${node.fd_used} max=${node.fd_total} label="file descriptors used" /><small class="muted">${count(node.fd_used)} of ${count(node.fd_total)}</small></div>
    ${memory.times.length > 1 && html`<${Chart} unit="" label=${`Memory of ${node.name} in the last ten minutes`} times=${memory.times} series=${[{ label: "Memory, MiB", colour: "--c1", values: memory.values.map((n) => n / 1048576) }]} />`}
    <details><summary>More</summary><${Facts} of=${{ ...node.addresses, "Load average": node.run_queue, Processors: node.processors, "Copies of groups": node.copies, "Data folder": node.db_dir, "Connections opened /s": rate(node.connection_created_details?.rate), "Process id": node.os_pid }} /></details>`}
  <//>`;
}

export function Nodes({ user }) {
  const { data, error, refresh } = usePoll(PATH, 5000);
  const groups = usePoll("groups", 5000);
  const admin = user.tags.includes("administrator");
  const again = () => {
    refresh();
    groups.refresh();
  };
  return html`<${Page} title="Nodes" error=${error}>
    ${!data ? !error && html`<${Loading} />` : html`<div class="grid">${data.map((node) => html`<${Node} key=${node.name} node=${node} admin=${admin} again=${again}
      groups=${groups.data?.length ?? 0} led=${(groups.data ?? []).filter((group) => group.leader === node.name).length} />`)}</div>`}
  <//>`;
}
