// One queue: what is in it, who has it, why nothing moves, and all that can be done with it.
import { html, useState } from "../vendor/preact-htm.js";
import { at, del, get, patch, post, put, query, usePoll } from "../api.js";
import { LengthChart, RateChart } from "../chart.js";
import { age, bytes, compact, count, plural, rate, time } from "../format.js";
import { Badge, Card, Dialog, Empty, Facts, Loading, Page, Stat, Table, Tabs, openDialog, parsed, toast, withCode } from "../parts.js";
import { queueLink } from "./overview.js";
import { Split } from "./queues.js";

const CURVES = query({ msg_rates_age: 600, msg_rates_incr: 5, lengths_age: 600, lengths_incr: 5 });
const PEEKED = 20;
const AT_ONCE = 1000;

// --- what can be done -----------------------------------------------------------------------------

const propertiesField = { key: "properties", label: "Properties (JSON)", kind: "area", rows: 2, hint: 'Such as {"headers": {"tenant": "a"}, "priority": 5, "expiration": "60000"}' };

export function publish(vhost, exchange, key, done) {
  openDialog(html`<${Dialog} title="Publish a message" action="Publish" done=${done} fields=${[
    { key: "key", label: "Routing key", value: key },
    { key: "payload", label: "Payload", kind: "area", rows: 6 },
    propertiesField,
  ]} run=${async (values) => {
    const { routed } = await post(`exchanges/${at(vhost, exchange || "amq.default")}/publish`, {
      routing_key: values.key, payload: values.payload, payload_encoding: "string", properties: parsed(values.properties, "Properties"),
    });
    if (!routed) throw new Error("No queue is bound for this key: the message was dropped.");
    return "The message is stored on a majority of the queue's nodes.";
  }} />`);
}

/** All messages for which `where` is true, part by part: what comes in meanwhile stays. */
async function moveAll(path, where, to, tell) {
  let start = 1;
  let moved = 0;
  let skipped = 0;
  const { messages } = await get(`${path}?columns=messages`);
  for (let left = messages; left > 0 && start !== null; ) {
    const found = await post(`${path}/select`, { where, start, count: AT_ONCE });
    if (found.positions.length) {
      const answer = await post(`${path}/move`, { positions: found.positions, ...(to && { to }) });
      moved += answer.done;
      skipped += answer.skipped;
      if (answer.full) throw new Error(`${count(moved)} were moved; ${answer.full} has no room for more.`);
      left -= found.count;
    }
    start = found.next;
    tell(`${count(moved)} moved …`);
  }
  return `${plural(moved, "message")} moved${skipped ? `, ${count(skipped)} skipped: it is not known where they come from, or they are too large` : ""}.`;
}

function move(vhost, name, others, done) {
  openDialog(html`<${Dialog} title=${`Move messages of ${name}`} action="Move" done=${done}
    text="Each message is in one of both queues at any moment, whatever crashes. Those that consumers hold stay."
    fields=${[
      { key: "to", label: "To queue", required: true, list: others },
      { key: "key", label: "Only with routing key", hint: "Empty: all that wait" },
    ]}
    run=${({ to, key }, tell) => moveAll(`queues/${at(vhost, name)}`, key ? { key } : {}, to, tell)} />`);
}

const replay = (vhost, name, done) => openDialog(html`<${Dialog} title="Replay dead letters" action="Replay" done=${done}
  text="Messages that died in another queue go back to it. Others stay here."
  run=${(_, tell) => moveAll(`queues/${at(vhost, name)}`, {}, "", tell)} />`);

function take(vhost, name, done) {
  openDialog(html`<${Dialog} title="Get messages" action="Get"
    text="They are taken out of the queue. To look at them without that, use the list of messages."
    fields=${[
      { key: "count", label: "How many", kind: "number", value: 1 },
      { key: "mode", label: "Then", kind: "select", options: ["acknowledge", "give back", "dead-letter"], value: "acknowledge" },
    ]}
    run=${async (values) => {
      const ackmode = { acknowledge: "ack_requeue_false", "give back": "ack_requeue_true", "dead-letter": "reject_requeue_false" }[values.mode];
      const got = await post(`queues/${at(vhost, name)}/get`, { count: Number(values.count), ackmode, encoding: "auto", truncate: 4096 });
      done(got);
      return got.length ? `${plural(got.length, "message")} taken.` : "No message was ready.";
    }} />`);
}

// --- messages -------------------------------------------------------------------------------------

function payloadOf(message) {
  if (message.payload_encoding !== "string") return `base64: ${message.payload}`;
  try {
    return JSON.stringify(JSON.parse(message.payload), null, 2);
  } catch {
    return message.payload;
  }
}

export function MessageCard({ message, vhost, queue, refresh }) {
  const { headers, ...properties } = message.properties ?? {};
  const [open, setOpen] = useState(false);
  const kind = { ready: "good", unsettled: "warn", delayed: "" }[message.state] ?? "";
  const dead = message.deaths?.at(-1);
  const delayed = message.state === "delayed";
  const path = `queues/${at(vhost, queue)}/delayed/${at(String(message.position))}`;
  const act = async (work, said) => {
    try {
      await work();
      toast(said);
      refresh();
    } catch (failed) {
      toast(failed.message, "bad");
    }
  };
  return html`<li class="message">
    <button class="plain summary" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class="mono muted">${message.position ?? "got"}</span>
      ${message.state && html`<${Badge} kind=${kind}>${message.state === "unsettled" ? "unacked" : message.state}<//>`}
      ${dead && html`<${Badge} kind="bad">died: ${dead.reason}<//>`}
      <span class="mono preview">${message.payload.slice(0, 160)}</span>
      <small class="muted">${message.enqueued_ms ? age(Date.now() - message.enqueued_ms) : bytes(message.payload_bytes)}</small>
    </button>
    ${open && html`<div class="detail">
      <pre>${payloadOf(message)}</pre>
      ${message.payload_bytes > message.payload.length && message.payload_encoding === "string" && html`<p class="muted small">The first ${bytes(message.payload.length)} of ${bytes(message.payload_bytes)}.</p>`}
      <${Facts} of=${{
        Exchange: message.exchange || "(default)", "Routing key": message.routing_key, Size: bytes(message.payload_bytes),
        ...(message.enqueued_ms && { Enqueued: time(message.enqueued_ms) }), ...(message.due_ms && { [delayed ? "Ready at" : "To be settled by"]: time(message.due_ms) }),
        ...(message.expires_at_ms && { Expires: time(message.expires_at_ms) }), ...(message.delivery_count && { "Failed deliveries": message.delivery_count }),
      }} />
      ${Object.keys(properties).length > 0 && html`<h3>Properties</h3><${Facts} of=${properties} />`}
      ${headers && Object.keys(headers).length > 0 && html`<h3>Headers</h3><${Facts} of=${headers} />`}
      ${dead && html`<h3>Deaths</h3><${Table} label="Deaths" keyOf=${(row) => `${row.queue}${row.reason}`} rows=${message.deaths} columns=${[
        { key: "queue", label: "Queue" }, { key: "reason", label: "Reason" }, { key: "count", label: "Times", num: true }]} />`}
      <div class="row">
        ${message.id?.includes("-") && html`<a class="button" href=${`#/message/${message.id}`}>History</a>`}
        ${delayed && html`<button onClick=${() => act(() => patch(path, { delay_ms: 0 }), "It is ready now.")}>Deliver now</button>
          <button class="danger" onClick=${() => act(() => del(path), "The message is gone.")}>Cancel it</button>`}
      </div>
    </div>`}
  </li>`;
}



function Messages({ vhost, name, taken, setTaken }) {
  const [state, setState] = useState("");
  const [start, setStart] = useState([1]);
  const { data, error, refresh, stale } = usePoll(`queues/${at(vhost, name)}/peek?${query({ state, start: start.at(-1), count: PEEKED })}`, 5000);
  const go = (next) => {
    setState(next);
    setStart([1]);
  };
  return html`<${Card} title="Messages" id="messages" actions=${html`<${Tabs} label="Which messages" now=${state} go=${go}
      tabs=${[["", "All"], ["ready", "Ready"], ["unsettled", "Unacked"], ["delayed", "Delayed"]]} />`}>
    ${taken && html`<div class="note"><div class="row spread"><strong>${plural(taken.length, "message")} got</strong><button onClick=${() => setTaken(null)}>Close</button></div>
      <ul class="messages">${taken.map((message, place) => html`<${MessageCard} key=${place} message=${message} vhost=${vhost} queue=${name} refresh=${refresh} />`)}</ul></div>`}
    ${error ? html`<p class="note bad" role="alert">${error.message}</p>` : !data || (stale && !data.length) ? html`<${Loading} />`
      : data.length
        ? html`<ul class="messages">${data.map((message) => html`<${MessageCard} key=${message.position} message=${message} vhost=${vhost} queue=${name} refresh=${refresh} />`)}</ul>
          <div class="row end">
            <button disabled=${start.length < 2} onClick=${() => setStart(start.slice(0, -1))}>Back</button>
            <button disabled=${data.length < PEEKED} onClick=${() => setStart([...start, data.at(-1).position + 1])}>Further</button>
          </div>`
        : html`<${Empty} title=${state ? "No such messages" : "The queue is empty"}>Looking takes nothing out: a message stays where it is.<//>`}
  <//>`;
}

// --- the page -------------------------------------------------------------------------------------

const STATUS = { up: ["good", "up"], active: ["good", "active"], waiting: ["", "waiting"], single_active: ["good", "active"], suspected: ["warn", "lost, its messages are kept"] };

function Consumers({ state }) {
  const rows = state?.consumers ?? [];
  return html`<${Card} title="Consumers" id="consumers" flush><${Table} label="Consumers" keyOf=${(row) => row.who} rows=${rows}
    empty=${html`<${Empty} title="Nobody is subscribed">Start one: <code>quorate consume</code>, or any AMQP, NATS or native client.<//>`}
    columns=${[
      { key: "who", label: "Consumer", show: (row) => html`<span class="mono small">${row.who}</span>` },
      { key: "status", label: "Status", show: (row) => html`<${Badge} kind=${(STATUS[row.status] ?? [""])[0]}>${(STATUS[row.status] ?? [, row.status])[1]}<//>` },
      { key: "held", label: "Holds", num: true, show: (row) => count(row.held) },
      { key: "since", label: "Since", num: true, show: (row) => (row.since_ms && row.held ? age(state.now_ms - row.since_ms) : "–") },
      { key: "credit", label: "Prefetch", num: true, minor: true, show: (row) => row.credit || "no limit" },
      { key: "node", label: "Node", minor: true, show: (row) => row.node ?? "–" },
    ]} /><//>`;
}

const SHARD = "name,vhost,leader,messages_ready,messages_unacknowledged,oldest_ready_age,message_stats.publish_details.rate";

/** Of a queue that is split: where its messages are. What is shown below is of the queue itself. */
function Shards({ vhost, of, names }) {
  const { data } = usePoll(`queues/${at(vhost)}?${query({ page: 1, page_size: 100, name: `${of}.`, columns: SHARD })}`, 5000);
  const rows = data?.items.filter((row) => names.includes(row.name));
  return html`<${Card} flush title="Shards" id="shards">
    <p class="muted filters">Messages go to these queues by their routing keys; what is below is of ${of} itself. <code>quorate queue join ${of}</code> makes it one queue again.</p>
    <${Table} label="Shards" keyOf=${(row) => row.name} rows=${rows} empty="None of them is there any more."
      columns=${[
        { key: "name", label: "Name", show: queueLink },
        { key: "age", label: "Oldest", num: true, show: (row) => row.messages_ready ? age(row.oldest_ready_age) : "–" },
        { key: "ready", label: "Ready", num: true, show: (row) => html`<span title=${count(row.messages_ready)}>${compact(row.messages_ready)}</span>` },
        { key: "unacked", label: "Unacked", num: true, show: (row) => compact(row.messages_unacknowledged) },
        { key: "in", label: "In /s", num: true, minor: true, show: (row) => rate(row.message_stats?.publish_details?.rate ?? 0) },
        { key: "leader", label: "Leader", minor: true, show: (row) => row.leader ?? "–" },
      ]} />
  <//>`;
}

export function Queue({ names: [vhost, name] }) {
  const path = `queues/${at(vhost, name)}`;
  const { data, error, refresh } = usePoll(`${path}?${CURVES}`, 5000);
  const why = usePoll(data && data.type !== "stream" ? `${path}/why` : null, 5000);
  const others = usePoll(`queues/${at(vhost)}?${query({ page: 1, page_size: 200, columns: "name" })}`, 0);
  const [taken, setTaken] = useState(null);
  const isStream = data?.type === "stream";
  const paused = why.data?.state?.paused;
  const again = () => {
    refresh();
    why.refresh();
  };
  const names = (others.data?.items ?? []).map((each) => each.name).filter((each) => each !== name);
  const purge = () => openDialog(html`<${Dialog} title="Purge the queue" name=${name} action="Purge" done=${again}
    text=${`${plural(data.messages_ready, "message")} that wait are dropped, without dead letters. Those that consumers hold stay.`}
    run=${async () => { await del(`${path}/contents`); return `${name} was purged.`; }} />`);
  const remove = () => openDialog(html`<${Dialog} title="Delete the queue" name=${name} action="Delete"
    text=${`The queue and its ${plural(data.messages, "message")} are gone for good, and its consumers are told so.`}
    run=${async () => { await del(path); location.hash = "#/queues"; return `${name} was deleted.`; }} />`);
  const pause = async () => {
    try {
      await (paused ? del(`${path}/pause`) : put(`${path}/pause`));
      toast(paused ? `${name} delivers again.` : `${name} is paused: it takes messages, and delivers none.`);
      again();
    } catch (failed) {
      toast(failed.message, "bad");
    }
  };
  const stats = data?.message_stats ?? {};
  return html`<${Page} title=${name} error=${error}
    sub=${data && html`<a href="#/queues">Queues</a> · ${vhost} · ${isStream ? "stream" : data.type === "quorum" ? "replicated" : "transient"} · led by ${data.leader ?? data.node ?? "nobody"} ${paused && html`<${Badge} kind="warn">paused<//>`}<${Split} of=${data} />`}
    actions=${data && html`
      <button class="primary" onClick=${() => publish(vhost, "", name, again)}>Publish</button>
      ${!isStream && html`<button onClick=${() => take(vhost, name, (got) => { setTaken(got); again(); })}>Get</button>
      <button onClick=${() => move(vhost, name, names, again)}>Move</button>
      <button onClick=${() => replay(vhost, name, again)}>Replay</button>
      <button onClick=${pause}>${paused ? "Resume" : "Pause"}</button>`}
      <button class="danger" onClick=${purge}>Purge</button>
      <button class="danger" onClick=${remove}>Delete</button>`}>
    ${!data ? !error && html`<${Loading} />` : html`
    ${isStream && html`<p class="note">This is a stream: <a href=${`#/streams/${at(vhost, name)}`}>its subjects, messages and consumers</a>.</p>`}
    ${data.shards && html`<${Shards} vhost=${vhost} of=${name} names=${data.shards} />`}
    ${why.data && (why.data.findings.length
      ? html`<${Card} title="Why does nothing move?" id="why"><ul class="attention">${why.data.findings.map((each) => html`<li key=${`${each.shard} ${each.code}`} class="warn"><strong>${each.shard && `${each.shard}: `}${each.sentence}</strong><span class="muted">Next: ${withCode(each.next)}</span></li>`)}</ul><//>`
      : html`<p class="note good">✓ Nothing keeps its messages from moving.</p>`)}
    <div class="stats">
      <${Stat} label="Ready" value=${compact(data.messages_ready)} title=${count(data.messages_ready)} />
      <${Stat} label="Unacknowledged" value=${compact(data.messages_unacknowledged)} />
      <${Stat} label="Delayed" value=${compact(data.messages_delayed)} />
      <${Stat} label="Oldest" value=${data.messages_ready ? age(data.oldest_ready_age) : "–"} kind=${data.slo_oldest_age != null && data.oldest_ready_age > data.slo_oldest_age ? "bad" : ""} />
      <${Stat} label="Published" value=${rate(stats.publish_details?.rate ?? 0)} unit="/s" />
      <${Stat} label="Delivered" value=${rate(stats.deliver_get_details?.rate ?? 0)} unit="/s" />
      <${Stat} label="Size" value=${bytes(data.message_bytes)} />
      <${Stat} label="Copies" value=${data.members ? `${data.online.length} of ${data.members.length}` : "1"} kind=${data.members && data.online.length < data.members.length ? "warn" : ""} />
    </div>
    <div class="two">
      <${Card} title="Rates" id="rates"><${RateChart} stats=${data.message_stats} label="Messages a second in the last ten minutes" /><//>
      <${Card} title="Messages that wait" id="waiting"><${LengthChart} of=${data} label="Messages in the queue in the last ten minutes" /><//>
    </div>
    <${Consumers} state=${why.data?.state} />
    ${!isStream && html`<${Messages} vhost=${vhost} name=${name} taken=${taken} setTaken=${setTaken} />`}
    <${Card} title="Settings" id="settings"><${Facts} of=${{
      Durable: data.durable, "Auto-delete": data.auto_delete, Exclusive: data.exclusive, Policy: data.policy, ...data.arguments,
      ...data.effective_policy_definition, Members: data.members?.join(", ") ?? data.node, "Consumer capacity": `${Math.round(100 * (data.consumer_capacity ?? 0))} %`,
    }} /><//>`}
  <//>`;
}
