// Exchanges, and what is bound to them.
import { html } from "../vendor/preact-htm.js";
import { at, del, post, put, query, usePoll } from "../api.js";
import { count } from "../format.js";
import { Badge, Card, Dialog, Empty, Facts, Loading, Page, Table, openDialog, parsed, toast } from "../parts.js";
import { publish } from "./queue.js";
import { useVhosts } from "./queues.js";

const named = (name) => name || "amq.default";
const TYPES = ["direct", "topic", "fanout", "headers", "x-consistent-hash", "x-delayed-message", "x-modulus-hash", "x-random"];

function declare(vhosts, done) {
  openDialog(html`<${Dialog} title="Declare an exchange" action="Declare" done=${done} fields=${[
    { key: "name", label: "Name", required: true },
    { key: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhosts[0] },
    { key: "type", label: "Type", kind: "select", options: TYPES, value: "topic" },
    { key: "arguments", label: "Arguments (JSON)", kind: "area", rows: 2, hint: 'Such as {"alternate-exchange": "unrouted"}' },
  ]} run=${async ({ name, vhost, type, arguments: given }) => {
    await put(`exchanges/${at(vhost, name)}`, { type, durable: true, arguments: parsed(given, "Arguments") });
    return `Exchange ${name} is there.`;
  }} />`);
}

export function Exchanges() {
  const vhosts = useVhosts();
  const { data, error, refresh } = usePoll("exchanges", 10000);
  return html`<${Page} title="Exchanges" error=${error} actions=${html`<button class="primary" onClick=${() => declare(vhosts, refresh)}>Declare an exchange</button>`}>
    <${Card} flush><${Table} label="Exchanges" keyOf=${(row) => `${row.vhost}/${row.name}`} rows=${data} columns=${[
      { key: "name", label: "Name", sort: "name", show: (row) => html`<a href=${`#/exchanges/${at(row.vhost, named(row.name))}`}>${row.name || "(default)"}</a>` },
      { key: "type", label: "Type", sort: "type", show: (row) => html`<${Badge}>${row.type}<//>` },
      { key: "vhost", label: "Vhost", sort: "vhost", minor: true },
      { key: "features", label: "", minor: true, show: (row) => html`${row.auto_delete && html`<${Badge}>auto-delete<//>`} ${row.internal && html`<${Badge}>internal<//>`} ${!row.durable && html`<${Badge}>transient<//>`}` },
      { key: "policy", label: "Policy", minor: true, show: (row) => row.policy ?? "–" },
    ]} /><//>
  <//>`;
}

const ROW = 34;
/** A default exchange has as many bindings as there are queues. */
const SHOWN = 200;

/** The exchange on the left, what is bound to it on the right, keys on the lines. */
function Graph({ name, bindings }) {
  const targets = [...new Set(bindings.map((each) => `${each.destination_type}:${each.destination}`))].slice(0, 24);
  const height = Math.max(2, targets.length) * ROW + 10;
  const y = (place) => (place + 0.5) * (height / targets.length);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Bindings as a graph"><svg class="graph" viewBox=${`0 0 720 ${height}`} role="img" aria-label=${`${name} leads to ${targets.length} queues and exchanges`}>
    ${targets.map((target, place) => {
      const keys = bindings.filter((each) => `${each.destination_type}:${each.destination}` === target).map((each) => each.routing_key || "(no key)");
      const shown = keys.length > 2 ? `${keys.slice(0, 2).join(", ")} +${keys.length - 2}` : keys.join(", ");
      const text = target.slice(target.indexOf(":") + 1);
      return html`<g key=${target}><path d=${`M170 ${height / 2} C 270 ${height / 2}, 300 ${y(place)}, 460 ${y(place)}`} />
        <text class="key" x="395" y=${y(place) - 6} text-anchor="middle">${shown.slice(0, 30)}</text>
        <rect x="460" y=${y(place) - 13} width="250" height="26" rx="7" /><text x="472" y=${y(place) + 4}>${text.length > 34 ? `${text.slice(0, 33)}…` : text}</text></g>`;
    })}
    <rect class="from" x="8" y=${height / 2 - 16} width="162" height="32" rx="9" /><text class="from" x="89" y=${height / 2 + 4} text-anchor="middle">${name.length > 22 ? `${name.slice(0, 21)}…` : name}</text>
  </svg></div>`;
}

export function Exchange({ names: [vhost, name] }) {
  const path = `exchanges/${at(vhost, name)}`;
  const own = name === "amq.default" ? "" : name;
  const { data, error } = usePoll(path, 10000);
  const { data: bound, refresh } = usePoll(`${path}/bindings/source?${query({ page: 1, page_size: SHOWN })}`, 5000);
  const bindings = bound?.items;
  const bind = () => openDialog(html`<${Dialog} title=${`Bind to ${name}`} action="Bind" done=${refresh} fields=${[
    { key: "kind", label: "What is bound", kind: "select", options: ["queue", "exchange"], value: "queue" },
    { key: "destination", label: "Its name", required: true },
    { key: "routing_key", label: "Routing key" },
    { key: "arguments", label: "Arguments (JSON)", kind: "area", rows: 2 },
  ]} run=${async (values) => {
    await post(`bindings/${at(vhost)}/e/${at(name)}/${values.kind === "queue" ? "q" : "e"}/${at(values.destination)}`, { routing_key: values.routing_key, arguments: parsed(values.arguments, "Arguments") });
    return `${values.destination} is bound.`;
  }} />`);
  const unbind = async (row) => {
    try {
      await del(`bindings/${at(vhost)}/e/${at(name)}/${row.destination_type === "queue" ? "q" : "e"}/${at(row.destination, row.properties_key)}`);
      toast(`${row.destination} is not bound by this key any more.`);
      refresh();
    } catch (failed) {
      toast(failed.message, "bad");
    }
  };
  const remove = () => openDialog(html`<${Dialog} title="Delete the exchange" name=${name} action="Delete" text="Its bindings go with it. What is published to it is refused then."
    run=${async () => { await del(path); location.hash = "#/exchanges"; return `${name} was deleted.`; }} />`);
  const builtin = own === "" || name.startsWith("amq.");
  return html`<${Page} title=${own || "(default)"} error=${error} sub=${data && html`<a href="#/exchanges">Exchanges</a> · ${vhost} · ${data.type}`}
    actions=${data && html`<button class="primary" onClick=${() => publish(vhost, own, "")}>Publish</button>${own && html`<button onClick=${bind}>Bind</button>`}${!builtin && html`<button class="danger" onClick=${remove}>Delete</button>`}`}>
    ${!data ? !error && html`<${Loading} />` : html`
      ${bindings?.length > 0 && html`<${Card} title="Where it leads" id="graph"><${Graph} name=${own || "(default)"} bindings=${bindings} /><//>`}
      <${Card} title=${`Bindings${bound ? ` (${count(bound.filtered_count)})` : ""}`} id="bindings" flush><${Table} label="Bindings" keyOf=${(row) => `${row.destination_type}/${row.destination}/${row.properties_key}`} rows=${bindings}
        empty=${html`<${Empty} title="Nothing is bound">Bind a queue: until then, what is published here is dropped.<//>`} columns=${[
          { key: "to", label: "To", sort: "destination", show: (row) => row.destination_type === "queue" ? html`<a href=${`#/queues/${at(vhost, row.destination)}`}>${row.destination}</a>` : html`<a href=${`#/exchanges/${at(vhost, row.destination)}`}>${row.destination}</a> <${Badge}>exchange<//>` },
          { key: "key", label: "Routing key", sort: "routing_key", show: (row) => html`<span class="mono">${row.routing_key}</span>` },
          { key: "args", label: "Arguments", minor: true, show: (row) => html`<${Facts} of=${row.arguments} />` },
          { key: "do", label: "", num: true, show: (row) => own && html`<button class="danger small" onClick=${() => unbind(row)}>Unbind</button>` },
        ]} />
        ${bound?.filtered_count > SHOWN && html`<p class="note">The first ${count(SHOWN)} are shown. <code>quorate binding list --exchange ${name}</code> shows all.</p>`}<//>
      <${Card} title="Settings" id="settings"><${Facts} of=${{ Durable: data.durable, "Auto-delete": data.auto_delete, Internal: data.internal, Policy: data.policy, ...data.arguments }} /><//>`}
  <//>`;
}
