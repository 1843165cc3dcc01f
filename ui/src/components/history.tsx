// What was transferred of late, as the elected replica remembers it. What is shown is in the address.
import { useMemo } from 'preact/hooks'
import type { History, HistoryPrometheus } from '../api'
import { formatClock, formatCount, formatNumber, formatRate, now, plainText } from '../format'
import { useAnswer } from '../query'
import { hrefWith, param, setParams } from '../route'
import { describePast, formatSpan, historyQuery, parseSpan, windows, type Span } from '../transfers'
import { Chart } from './chart'
import { Panel } from './panel'
import { cropDrawing, drawingOf, formatRateTick, isCurrent, missingIn, othersOf, type Drawing } from './series'
import { Shown } from './states'

const linesShown = 7
const everyMinute = 60_000
const hoursOfClusters = 6

/** Clusters are remembered for fewer hours than a span of the address may name. */
function limitSpan(span: Span | undefined, hours: number): Span | undefined {
  return span && span.from >= now.peek() / 1000 - hours * 3600 ? span : undefined
}

/** A mean of what is counted. */
function formatMean(n: number): string {
  return n < 10 ? String(Math.round(n * 10) / 10) : formatNumber(n)
}

const seriesShown = [
  { name: 'bytes', label: 'Throughput', format: formatRate, formatTick: formatRateTick },
  { name: 'slots', label: 'Slots', format: formatMean, formatTick: formatNumber },
  { name: 'queued', label: 'Queue', format: formatMean, formatTick: formatNumber },
]

export interface HistoryPanelProps {
  title: string
  /** The clusters to choose between lines by source and by cluster, or the one cluster that is shown. */
  cluster?: string
}

/** HistoryPanel is a chart of the last hours, stacked by source or by cluster. A span that is marked is zoomed to. */
export function HistoryPanel({ title, cluster }: HistoryPanelProps) {
  const by = cluster !== undefined || param('by') === 'cluster' ? 'cluster' : 'source'
  const series = seriesShown.find((s) => s.name === param('show')) ?? seriesShown[0]!
  const hours = windows.find((h) => String(h) === param('hours')) ?? (by === 'cluster' ? hoursOfClusters : 24)
  const span = limitSpan(parseSpan(param('from'), param('to'), now.peek()), by === 'cluster' ? hoursOfClusters : 24)
  const query = by === 'cluster' ? historyQuery(Math.min(hours, hoursOfClusters), span, now.peek(), 'fiveMinutes') : historyQuery(hours, span, now.peek())
  const asked = { ...query, series: series.name }
  const answer = useAnswer<History>('history', { ...asked, by, limit: linesShown, clusters: cluster }, ['transfers'], everyMinute)
  // What the clusters that are not named have is what the fleet has beyond them.
  const sum = useAnswer<History>(by === 'cluster' && cluster === undefined ? 'history' : undefined, { ...asked, by: 'fleet' }, ['transfers'], everyMinute)
  return (
    <Panel title={title} aside={<Choices by={by} series={series.name} hours={hours} zoomed={span !== undefined} cluster={cluster} />}>
      <Shown answer={answer} lines={6}>
        {(history) => <HistoryChart history={history} sum={sum.value.value} series={series} span={span} label={title} />}
      </Shown>
    </Panel>
  )
}

function HistoryChart({ history, sum, series, span, label }: { history: History; sum?: History; series: (typeof seriesShown)[number]; span?: { from: number; to: number }; label: string }) {
  const drawing = useMemo(() => {
    const drawn = withOthers(drawingOf(history, series.name, (name) => nameOfLine(name, history.by)), history, sum, series.name)
    return span ? cropDrawing(drawn, span.from, span.to) : drawn
  }, [history, sum, series, span?.from, span?.to])
  const past = describePast(history, drawing.times[0] ?? 0)
  const missing = missingIn(history)
  if (drawing.lines.every((l) => l.values.every((v) => v === null))) return <p class="muted">Nothing is known of these hours. This replica remembers since {formatClock(history.since)}, when it was elected.</p>
  return (
    <Chart
      label={`${label}: ${series.label}`}
      drawing={drawing}
      format={series.format}
      formatTick={series.formatTick}
      binary={series.name === 'bytes'}
      stacked
      height={240}
      since={past.unknownBefore}
      note={
        <>
          {past.notes.map((n) => n + ' ')}
          {missing.now > 0 && isCurrent(drawing, now.peek() / 1000) && <>{formatCount(missing.now, 'cluster is', 'clusters are')} unknown now, and not in it. </>}
          {!span && missing.most > missing.now && <>At times {formatCount(missing.most, 'cluster was', 'clusters were')} unknown. </>}
          {history.by === 'cluster' && <>Clusters are remembered for 6 hours. </>}
          Mark a span to zoom.
        </>
      }
      onSelect={(from, to) => setParams(formatSpan(from, to), { replace: false })}
    />
  )
}

function nameOfLine(name: string, by: string): string {
  if (by === 'source' && name === 'other') return 'other sources'
  return name === '' ? 'the fleet' : plainText(name, 60)
}

function withOthers(drawing: Drawing, history: History, sum: History | undefined, series: string): Drawing {
  const values = sum?.lines[0]?.values[series]
  const isSame = sum !== undefined && sum.start === history.start && sum.stepSeconds === history.stepSeconds
  if (history.total <= history.lines.length || !values || !isSame) return drawing
  return { times: drawing.times, lines: [...drawing.lines, { name: formatCount(history.total - history.lines.length, 'other'), values: othersOf(values, drawing.lines), tone: 7 }] }
}

function Choices({ by, series, hours, zoomed, cluster }: { by: string; series: string; hours: number; zoomed: boolean; cluster?: string }) {
  return (
    <>
      <Choice label="Shown" options={seriesShown.map((s) => ({ name: s.label, chosen: s.name === series, href: hrefWith({ show: s.name === 'bytes' ? undefined : s.name }) }))} />
      {cluster === undefined && (
        <Choice
          label="Stacked"
          options={[
            { name: 'By source', chosen: by === 'source', href: hrefWith({ by: undefined, hours: undefined, from: undefined, to: undefined }) },
            { name: 'By cluster', chosen: by === 'cluster', href: hrefWith({ by: 'cluster', hours: undefined, from: undefined, to: undefined }) },
          ]}
        />
      )}
      <Choice
        label="Window"
        options={windows
          .filter((h) => by !== 'cluster' || h <= hoursOfClusters)
          .map((h) => ({ name: `${h} h`, chosen: !zoomed && h === hours, href: hrefWith({ hours: String(h), from: undefined, to: undefined }) }))}
      />
      {zoomed && (
        <a class="button button-quiet" href={hrefWith({ from: undefined, to: undefined })}>
          Zoom out
        </a>
      )}
    </>
  )
}

/** Choice is one of a few, as links: the address holds it. */
export function Choice({ label, options }: { label: string; options: { name: string; chosen: boolean; href: string }[] }) {
  return (
    <span class="choice" role="group" aria-label={label}>
      {options.map((o) => (
        <a key={o.name} href={o.href} aria-current={o.chosen ? 'true' : undefined}>
          {o.name}
        </a>
      ))}
    </span>
  )
}

/** The day of each source, for its own small chart, and what is known of the time before. */
export function useSourceHistory(): { drawings: Map<string, Drawing>; past?: HistoryPrometheus; unknownBefore?: number } {
  const answer = useAnswer<History>('history', { by: 'source', series: 'bytes', window: '24h', points: 96, limit: 20 }, ['transfers'], everyMinute).value.value
  return useMemo(() => {
    const drawings = new Map<string, Drawing>()
    if (!answer) return { drawings }
    const all = drawingOf(answer, 'bytes', (name) => name)
    all.lines.forEach((line, i) => drawings.set(line.name, { times: all.times, lines: [{ ...line, name: nameOfLine(line.name, 'source'), tone: i }] }))
    return { drawings, past: answer.prometheus, unknownBefore: describePast(answer, all.times[0] ?? 0).unknownBefore }
  }, [answer])
}
