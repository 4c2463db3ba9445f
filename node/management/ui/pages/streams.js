// Streams, what is in them, and how far their consumers are.
import { html, useState } from "../vendor/preact-htm.js";
import { at, del, get, post, put, usePoll } from "../api.js";
import { bytes, compact, count, time } from "../format.js";
import { Badge, Card, Dialog, Empty, Facts, Loading, Page, Stat, Table, openDialog, toast } from "../parts.js";
import { useVhosts } from "./queues.js";

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

function create(vhosts, done) {
  openDialog(html`<${Dialog} title="Make a stream" action="Make it" done=${done} fields=${[
    { key: "name", label: "Name", required: true },
    { key: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhosts[0] },
    { key: "subjects", label: "Subjects", required: true, hint: "Such as orders.*; several with commas between them" },
    { key: "max_age", label: "Keep for at most", hint: "Such as 24h; empty: for ever" },
  ]} run=${async ({ name, vhost, subjects, max_age }) => {
    await put(`streams/${at(vhost, name)}`, { subjects: words(subjects), ...(max_age && { max_age }) });
    return `Stream ${name} is there.`;
  }} />`);
}

export function Streams() {
  const vhosts = useVhosts();
  const { data, error, refresh } = usePoll("streams", 5000);
  return html`<${Page} title="Streams" error=${error} sub="What is published stays; each consumer has its own place."
    actions=${html`<button class="primary" onClick=${() => create(vhosts, refresh)}>Make a stream</button>`}>
    <${Card} flush><${Table} label="Streams" keyOf=${(row) => `${row.vhost}/${row.config?.name ?? row.name}`} rows=${data}
      empty=${html`<${Empty} title="No streams yet">Make one here, or by NATS: <code>nats stream add</code>.<//>`}
      columns=${[
        { key: "name", label: "Name", sort: "config.name", show: (row) => html`<a href=${`#/streams/${at(row.vhost, row.config?.name ?? row.name)}`}>${row.config?.name ?? row.name}</a>` },
        { key: "subjects", label: "Subjects", minor: true, show: (row) => html`<span class="mono small">${row.config?.subjects?.join(", ") || "–"}</span>` },
        { key: "messages", label: "Messages", num: true, sort: "state.messages", show: (row) => compact(row.state?.messages) },
        { key: "bytes", label: "Size", num: true, sort: "state.bytes", show: (row) => bytes(row.state?.bytes) },
        { key: "last", label: "Last", num: true, minor: true, sort: "state.last_seq", show: (row) => count(row.state?.last_seq) },
        { key: "consumers", label: "Consumers", num: true, sort: "state.consumer_count", show: (row) => count(row.state?.consumer_count) },
        { key: "leader", label: "Leader", minor: true, show: (row) => row.cluster?.leader ?? "–" },
      ]} /><//>
  <//>`;
}

function Look({ path, state }) {
  const [seq, setSeq] = useState("");
  const [found, setFound] = useState(null);
  const look = async (number) => {
    try {
      setFound((await get(`${path}/message?seq=${number}`)).message);
      setSeq(number);
    } catch (failed) {
      toast(failed.message, "bad");
    }
  };
  const text = (coded) => {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(atob(coded ?? ""), (c) => c.charCodeAt(0)));
    } catch {
      return coded;
    }
  };
  return html`<${Card} title="Messages" id="messages">
    <form class="row" onSubmit=${(e) => { e.preventDefault(); look(Number(seq)); }}>
      <input type="number" min="1" aria-label="Number of the message" placeholder="Number" value=${seq} onInput=${(e) => setSeq(e.target.value)} required />
      <button>Look</button>
      <button type="button" onClick=${() => look(state.first_seq)} disabled=${!state.messages}>First</button>
      <button type="button" onClick=${() => look(state.last_seq)} disabled=${!state.messages}>Last</button>
      <button type="button" onClick=${() => look(Number(seq) + 1)} disabled=${!found || Number(seq) >= state.last_seq}>Next</button>
    </form>
    ${found && html`<div class="detail"><pre>${text(found.data)}</pre>
      <${Facts} of=${{ Number: found.seq, Subject: found.subject, Time: time(Date.parse(found.time)), ...(found.hdrs && { Headers: text(found.hdrs) }) }} /></div>`}
  <//>`;
}

export function Stream({ names: [vhost, name] }) {
  const path = `streams/${at(vhost, name)}`;
  const { data, error, refresh } = usePoll(path, 5000);
  const consumers = usePoll(`${path}/consumers`, 5000);
  const again = () => {
    refresh();
    consumers.refresh();
  };
  const purge = () => openDialog(html`<${Dialog} title="Purge the stream" name=${name} action="Purge" done=${again} text="All its messages are dropped."
    run=${async () => `${count((await post(`${path}/purge`)).purged)} messages were purged.`} />`);
  const remove = () => openDialog(html`<${Dialog} title="Delete the stream" name=${name} action="Delete" text="Its messages and consumers are gone for good."
    run=${async () => { await del(path); location.hash = "#/streams"; return `${name} was deleted.`; }} />`);
  const drop = (consumer) => openDialog(html`<${Dialog} title="Delete the consumer" name=${consumer} action="Delete" text="Its place in the stream is forgotten." done=${again}
    run=${async () => { await del(`${path}/consumers/${at(consumer)}`); return `${consumer} was deleted.`; }} />`);
  const state = data?.state ?? {};
  return html`<${Page} title=${name} error=${error} sub=${data && html`<a href="#/streams">Streams</a> · ${vhost} · led by ${data.cluster?.leader ?? "nobody"}`}
    actions=${data && html`<a class="button" href=${`#/queues/${at(vhost, name)}`}>As a queue</a><button class="danger" onClick=${purge}>Purge</button><button class="danger" onClick=${remove}>Delete</button>`}>
    ${!data ? !error && html`<${Loading} />` : html`
    <div class="stats">
      <${Stat} label="Messages" value=${compact(state.messages)} /><${Stat} label="Size" value=${bytes(state.bytes)} />
      <${Stat} label="First" value=${count(state.first_seq)} /><${Stat} label="Last" value=${count(state.last_seq)} />
      <${Stat} label="Subjects" value=${count(state.num_subjects ?? 0)} /><${Stat} label="Consumers" value=${count(state.consumer_count)} />
    </div>
    <${Card} title="Consumers" id="consumers" flush><${Table} label="Consumers" keyOf=${(row) => row.name} rows=${consumers.data?.consumers ?? consumers.data}
      empty=${html`<${Empty} title="No consumers">They come with their clients: NATS's, or AMQP's that read it as a stream.<//>`} columns=${[
      { key: "name", label: "Name", sort: "name", show: (row) => html`${row.name} ${row.paused && html`<${Badge} kind="warn">paused<//>`}` },
      { key: "lag", label: "Pending", num: true, sort: "num_pending", show: (row) => count(row.num_pending) },
      { key: "held", label: "Unacked", num: true, sort: "num_ack_pending", show: (row) => count(row.num_ack_pending) },
      { key: "again", label: "Redelivered", num: true, minor: true, show: (row) => count(row.num_redelivered) },
      { key: "at", label: "Acked up to", num: true, minor: true, show: (row) => count(row.ack_floor?.stream_seq) },
      { key: "filter", label: "Filter", minor: true, show: (row) => html`<span class="mono small">${row.config?.filter_subject ?? row.config?.filter_subjects?.join(", ") ?? "–"}</span>` },
      { key: "do", label: "", num: true, show: (row) => html`<button class="danger small" onClick=${() => drop(row.name)}>Delete</button>` },
    ]} /><//>
    <${Look} path=${path} state=${state} />
    <${Card} title="Settings" id="settings"><${Facts} of=${data.config} /><//>`}
  <//>`;
}
