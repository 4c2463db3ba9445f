// Curves: uPlot, which is a script of its own, in the page's colours.
import { html, useEffect, useRef } from "./vendor/preact-htm.js";
import { compact } from "./format.js";

const HEIGHT = 190;

function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function axis(extra) {
  return {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui",
    ...extra,
  };
}

/** `series`: { label, colour: "--c1", values }; `times` in seconds, ascending. */
export function Chart({ times, series, label, unit = "/s" }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [times, ...series.map((each) => each.values)];
  const shape = series.map((each) => each.label).join();
  useEffect(() => {
    const element = place.current;
    const width = () => Math.max(200, element.clientWidth);
    plot.current = new uPlot(
      {
        width: width(),
        height: HEIGHT,
        cursor: { y: false, points: { size: 6 } },
        legend: { markers: { width: 0, fill: (_, place) => colour(series[place - 1]?.colour ?? "--muted") } },
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [
          axis({ size: 28, space: 70, values: (_, ticks) => ticks.map((s) => new Date(1000 * s).toLocaleTimeString("en-GB").slice(0, ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 8 : 5)) }),
          axis({ size: 46, space: 36, values: (_, ticks) => ticks.map((n) => (n < 10 ? String(+n.toFixed(2)) : compact(n))) }),
        ],
        series: [
          { value: (_, s) => (s == null ? "" : new Date(1000 * s).toLocaleTimeString("en-GB")) },
          ...series.map((each) => ({
            label: each.label,
            stroke: () => colour(each.colour),
            width: 2,
            points: { show: false },
            value: (_, n) => (n == null ? "" : `${compact(Math.round(10 * n) / 10)}${unit}`),
          })),
        ],
      },
      data,
      element,
    );
    const seen = new ResizeObserver(() => plot.current.setSize({ width: width(), height: HEIGHT }));
    seen.observe(element);
    const redraw = () => plot.current.redraw();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", redraw);
    addEventListener("theme", redraw);
    return () => {
      seen.disconnect();
      scheme.removeEventListener("change", redraw);
      removeEventListener("theme", redraw);
      plot.current.destroy();
    };
  }, [shape]);
  useEffect(() => plot.current.setData(data), [times]);
  return html`<figure class="chart" role="img" aria-label=${label} ref=${place} />`;
}

/** Of a `..._details` with samples: times in seconds, ascending, and what was counted then. */
function samplesOf(details) {
  return [...(details?.samples ?? [])].reverse().map((each) => [each.timestamp / 1000, each.sample]);
}

/** What is counted on and on, as a rate. */
export function rates(details) {
  const rows = samplesOf(details);
  return {
    times: rows.slice(1).map(([at]) => at),
    values: rows.slice(1).map(([at, n], place) => Math.max(0, (n - rows[place][1]) / (at - rows[place][0]))),
  };
}

export function lengths(details) {
  const rows = samplesOf(details);
  return { times: rows.map(([at]) => at), values: rows.map(([, n]) => n) };
}

const SHOWN_MIN = 24;
const BEFORE = 6;

/** `curves`: [label, colour, { times, values }]. A long time in which nothing happened is left out. */
function Curves({ curves, label, unit }) {
  const { times } = curves[0][2];
  if (times.length < 2) return html`<div class="chart empty"><p>Curves come with the first messages.</p></div>`;
  const happened = Math.min(...curves.map(([, , { values }]) => {
    const place = values.findIndex((value) => value !== values[0]);
    return place < 0 ? values.length : place;
  }));
  const from = Math.max(0, Math.min(happened - BEFORE, times.length - SHOWN_MIN));
  const series = curves.map(([name, colour, { values }]) => ({ label: name, colour, values: values.slice(from) }));
  return html`<${Chart} label=${label} unit=${unit} times=${times.slice(from)} series=${series} />`;
}

export const RateChart = ({ stats, label }) => html`<${Curves} label=${label} unit="/s" curves=${[
  ["Published", "--c1", rates(stats?.publish_details)],
  ["Delivered", "--c2", rates(stats?.deliver_get_details)],
  ["Acknowledged", "--c3", rates(stats?.ack_details)],
]} />`;

export const LengthChart = ({ of, label }) => html`<${Curves} label=${label} unit="" curves=${[
  ["Ready", "--c4", lengths(of?.messages_ready_details)],
  ["Unacknowledged", "--c5", lengths(of?.messages_unacknowledged_details)],
]} />`;
