// Policies: settings for all queues and exchanges whose names match.
import { html } from "../vendor/preact-htm.js";
import { at, del, put, usePoll } from "../api.js";
import { Badge, Card, Dialog, Empty, Facts, Page, Table, openDialog, parsed } from "../parts.js";
import { useVhosts } from "./queues.js";

function edit(kind, vhosts, row, done) {
  openDialog(html`<${Dialog} title=${row ? `Policy ${row.name}` : "Add a policy"} done=${done} fields=${[
    ...(row ? [] : [{ key: "name", label: "Name", required: true }, { key: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhosts[0] }]),
    { key: "pattern", label: "Names that match (regular expression)", required: true, value: row?.pattern ?? "" },
    { key: "apply", label: "Applies to", kind: "select", options: ["queues", "quorum_queues", "classic_queues", "streams", "exchanges", "all"], value: row?.["apply-to"] ?? "queues" },
    { key: "priority", label: "Priority", kind: "number", value: row?.priority ?? 0 },
    { key: "definition", label: "Definition (JSON)", kind: "area", value: row ? JSON.stringify(row.definition, null, 2) : '{"max-length": 100000}' },
  ]} run=${async (values) => {
    const name = row?.name ?? values.name;
    await put(`${kind}/${at(row?.vhost ?? values.vhost, name)}`, { pattern: values.pattern, "apply-to": values.apply, priority: Number(values.priority), definition: parsed(values.definition, "The definition") });
    return `Policy ${name} is in force.`;
  }} />`);
}

function List({ title, kind, none, vhosts }) {
  const { data, error, refresh } = usePoll(kind, 10000);
  const remove = (row) => openDialog(html`<${Dialog} title="Delete the policy" name=${row.name} action="Delete" done=${refresh} text="Queues and exchanges go by what they were declared with, or by the next policy."
    run=${async () => { await del(`${kind}/${at(row.vhost, row.name)}`); return `${row.name} was deleted.`; }} />`);
  return html`<${Card} title=${title} id=${kind} flush actions=${html`<button onClick=${() => edit(kind, vhosts, null, refresh)}>Add</button>`}>
    ${error ? html`<p class="note bad">${error.message}</p>` : html`<${Table} label=${title} keyOf=${(row) => `${row.vhost}/${row.name}`} rows=${data}
      empty=${html`<${Empty} title="None yet">${none}<//>`} columns=${[
      { key: "name", label: "Name", sort: "name", show: (row) => html`<strong>${row.name}</strong> <small class="muted">${row.vhost}</small>` },
      { key: "pattern", label: "Pattern", show: (row) => html`<span class="mono">${row.pattern}</span>` },
      { key: "to", label: "Applies to", minor: true, show: (row) => html`<${Badge}>${row["apply-to"]}<//>` },
      { key: "definition", label: "Definition", minor: true, show: (row) => html`<${Facts} of=${row.definition} />` },
      { key: "priority", label: "Priority", num: true, minor: true, sort: "priority" },
      { key: "do", label: "", num: true, show: (row) => html`<span class="row end"><button class="small" onClick=${() => edit(kind, vhosts, row, refresh)}>Edit</button><button class="danger small" onClick=${() => remove(row)}>Delete</button></span>` },
    ]} />`}
  <//>`;
}

export function Policies() {
  const vhosts = useVhosts();
  return html`<${Page} title="Policies" sub="The policy of the highest priority whose pattern matches counts; an operator's limits hold on top of it.">
    <${List} title="Policies" kind="policies" vhosts=${vhosts} none="A policy gives queues a limit, a dead-letter exchange or an age limit without declaring them anew." />
    <${List} title="Operator policies" kind="operator-policies" vhosts=${vhosts} none="What users may not exceed, whatever their own policies say." />
  <//>`;
}
