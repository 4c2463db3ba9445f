// Shovels and federation links: what comes from and goes to other brokers.
import { html } from "../vendor/preact-htm.js";
import { at, del, put, usePoll } from "../api.js";
import { bytes, count } from "../format.js";
import { Badge, Card, Dialog, Empty, Page, Table, openDialog, parsed, toast } from "../parts.js";
import { useVhosts } from "./queues.js";

const state = (row) => html`<${Badge} kind=${["running", "up"].includes(row.state ?? row.status) ? "good" : "warn"}>${row.state ?? row.status}<//>`;

export function Links() {
  const vhosts = useVhosts();
  const shovels = usePoll("shovels", 5000);
  const links = usePoll("federation-links", 5000);
  const add = () => openDialog(html`<${Dialog} title="Add a shovel" action="Add" done=${shovels.refresh} fields=${[
    { key: "name", label: "Name", required: true },
    { key: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhosts[0] },
    { key: "value", label: "Definition (JSON)", kind: "area", rows: 7, value: JSON.stringify({ "src-uri": "amqp://", "src-queue": "", "dest-uri": "amqp://user:password@host", "dest-queue": "" }, null, 2), hint: "amqp:// alone is this cluster" },
  ]} run=${async ({ name, vhost, value }) => { await put(`parameters/shovel/${at(vhost, name)}`, { value: parsed(value, "The definition") }); return `Shovel ${name} starts.`; }} />`);
  const restart = async (path) => {
    try {
      await del(path);
      toast("It connects anew.");
    } catch (failed) {
      toast(failed.message, "bad");
    }
  };
  const remove = (row) => openDialog(html`<${Dialog} title="Delete the shovel" name=${row.name} action="Delete" done=${shovels.refresh} text="What it has under way is given back to its source."
    run=${async () => { await del(`shovels/vhost/${at(row.vhost, row.name)}`); return `${row.name} was deleted.`; }} />`);
  return html`<${Page} title="Links" error=${shovels.error}>
    <${Card} title="Shovels" id="shovels" flush actions=${html`<button class="primary" onClick=${add}>Add a shovel</button>`}>
      <${Table} label="Shovels" keyOf=${(row) => `${row.vhost}/${row.name}`} rows=${shovels.data} empty=${html`<${Empty} title="No shovels">A shovel moves messages to or from another broker, or between queues here, for as long as it takes.<//>`} columns=${[
        { key: "name", label: "Name", sort: "name", show: (row) => html`<strong>${row.name}</strong>` },
        { key: "state", label: "State", show: state },
        { key: "from", label: "From → to", minor: true, show: (row) => html`<span class="small">${row.src_queue ?? row.src_exchange ?? row.src_uri ?? "–"} → ${row.dest_queue ?? row.dest_exchange ?? row.dest_uri ?? "–"}</span>` },
        { key: "messages", label: "Messages", num: true, show: (row) => count(row.messages) },
        { key: "bytes", label: "Bytes", num: true, minor: true, show: (row) => bytes(row.bytes) },
        { key: "node", label: "Node", minor: true },
        { key: "reason", label: "Last trouble", minor: true, show: (row) => row.reason ?? "–" },
        { key: "do", label: "", num: true, show: (row) => html`<span class="row end"><button class="small" onClick=${() => restart(`shovels/vhost/${at(row.vhost, row.name)}/restart`)}>Restart</button><button class="danger small" onClick=${() => remove(row)}>Delete</button></span>` },
      ]} /><//>
    <${Card} title="Federation links" id="federation" flush>
      <${Table} label="Federation links" keyOf=${(row) => row.id} rows=${links.data} empty=${html`<${Empty} title="No federation links">An upstream and a policy make them: <code>quorate federation --help</code>.<//>`} columns=${[
        { key: "upstream", label: "Upstream", sort: "upstream", show: (row) => html`<strong>${row.upstream}</strong>` },
        { key: "what", label: "Of", show: (row) => row.exchange ?? row.queue },
        { key: "status", label: "Status", show: state },
        { key: "node", label: "Node", minor: true },
        { key: "error", label: "Last trouble", minor: true, show: (row) => row.error ?? row.reason ?? "–" },
        { key: "do", label: "", num: true, show: (row) => html`<button class="small" onClick=${() => restart(`federation-links/vhost/${at(row.vhost, row.id, row.node)}/restart`)}>Restart</button>` },
      ]} /><//>
  <//>`;
}
