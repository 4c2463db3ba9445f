// What happened to one message, as the log tells it.
import { html, useState } from "../vendor/preact-htm.js";
import { at, native, usePoll } from "../api.js";
import { age, time } from "../format.js";
import { Badge, Card, Empty, Facts, Loading, Page } from "../parts.js";

const KINDS = { published: "good", delivered: "", returned: "warn", acked: "good", settled: "good", expired: "bad", dead_lettered: "bad", rejected: "bad", purged: "bad", withdrawn: "warn" };
const TOLD = new Set(["event", "at_ms", "vhost", "queue", "entry", "term", "written_ms", "committed_ms"]);

function Event({ event, began }) {
  const more = Object.fromEntries(Object.entries(event).filter(([key, value]) => !TOLD.has(key) && value != null));
  return html`<li class=${KINDS[event.event] ?? ""}>
    <div class="row spread"><strong>${event.event.replaceAll("_", " ")}</strong><span class="muted small">${time(event.at_ms)} · +${age(event.at_ms - began)}</span></div>
    <p class="small"><a href=${`#/queues/${at(event.vhost, event.queue)}`}>${event.queue}</a> <span class="muted">log entry ${event.entry}, term ${event.term}${event.committed_ms ? `, on a majority after ${age(event.committed_ms - event.at_ms)}` : ""}</span></p>
    ${Object.keys(more).length > 0 && html`<${Facts} of=${more} />`}
  </li>`;
}

function History({ id }) {
  const { data, error } = usePoll(`messages/${at(id)}/history`, 0, native);
  if (error) return html`<p class="note bad" role="alert">${error.message}</p>`;
  if (!data) return html`<${Loading} />`;
  const { now, events, read } = data;
  return html`
    <${Card} title="Now" id="now"><p class="row">
      <${Badge} kind=${now.state === "ready" ? "good" : now.state === "gone" ? "" : "warn"}>${now.state}<//>
      ${now.queue && html`<span>in <a href=${`#/queues/${at(now.vhost, now.queue)}`}>${now.queue}</a>${now.position && ` at position ${now.position}`}</span>`}
    </p></${Card}>
    <${Card} title="What happened" id="events">
      ${events.length ? html`<ol class="timeline">${events.map((event, place) => html`<${Event} key=${place} event=${event} began=${events[0].at_ms} />`)}</ol>`
        : html`<${Empty} title="The log knows nothing of it any more">What is older than the log was cut off; the archive, if there is one, has it.<//>`}
      ${data.withheld > 0 && html`<p class="muted small">${data.withheld} more happened in queues that you may not read.</p>`}
      <p class="muted small">Read from the log of ${read.node}, entries ${read.from} to ${read.to}, of which the last was written ${time(read.to_ms)}.${read.whole ? "" : " The log does not go back to the beginning."}</p>
    <//>`;
}

export function Message({ names: [id] }) {
  const [typed, setTyped] = useState(id ?? "");
  const find = (event) => {
    event.preventDefault();
    location.hash = `#/message/${at(typed.trim())}`;
  };
  return html`<${Page} title="Message history" sub="Publish, deliveries, returns, its end, and where it is now.">
    <${Card}><form class="row" onSubmit=${find}>
      <input class="mono grow" aria-label="Id of the message" placeholder="GROUP-ENTRY-OFFSET, such as 1-18200-0" required value=${typed} onInput=${(e) => setTyped(e.target.value)} />
      <button class="primary">Find</button>
    </form>
    ${!id && html`<p class="muted small">A message shows its id, and this history, in the list of its <a href="#/queues">queue</a>.</p>`}<//>
    ${id && html`<${History} id=${id} />`}
  <//>`;
}
