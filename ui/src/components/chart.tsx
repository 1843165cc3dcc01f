// Lines and stacked areas over time. uPlot is loaded with the first chart.
import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import type uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { formatClock, now } from '../format'
import { resolveColor, theme } from '../theme'
import './chart.css'
import { binaryTicks, clockTicks, isCurrent, lastOf, stackLines, tableRows, wholeTicks, type Drawing, type Line } from './series'

export type { Drawing, Line } from './series'

export interface ChartProps {
  label: string
  drawing: Drawing
  format: (n: number) => string
  height?: number
  /** Areas on top of each other instead of lines. */
  stacked?: boolean
  /** How values are written beside the chart; as elsewhere by default. */
  formatTick?: (n: number) => string
  /** Ticks at powers of two, for bytes. */
  binary?: boolean
  /** Without axes and legend, for a place beside numbers. */
  bare?: boolean
  /** Nothing is known before this time, in seconds. */
  since?: number
  /** Shown below: why there is nothing before since, or what is missing in the lines. */
  note?: ComponentChildren
  /** A span of time was marked with the pointer, in seconds. */
  onSelect?: (from: number, to: number) => void
}

/** Chart draws values over time. Unknown values are gaps, and never zero. The same numbers are in a table below it. */
export function Chart({ label, drawing, format, formatTick = format, height = 200, stacked, binary, bare, since, note, onSelect }: ChartProps) {
  const frame = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const at = useSignal<number | null>(null)
  const dark = theme.dark.value
  const data = useMemo(() => dataOf(drawing, stacked), [drawing, stacked])
  // What a plot that is drawn already reads when it draws again.
  const latest = useRef({ data, formatTick, since, onSelect })
  latest.current = { data, formatTick, since, onSelect }
  const names = JSON.stringify(drawing.lines.map((l) => [l.name, l.tone]))

  useEffect(() => {
    const element = frame.current
    if (!element) return undefined
    let ended = false
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }))
    void import('uplot').then(({ default: Plot }) => {
      if (ended) return
      plot.current = new Plot(optionsOf(element, drawing.lines, { height, stacked, binary, bare, selectable: onSelect !== undefined }, latest, (index) => (at.value = index)), latest.current.data, element)
      resize.observe(element)
    })
    return () => {
      ended = true
      resize.disconnect()
      plot.current?.destroy()
      plot.current = undefined
    }
  }, [names, dark, height, stacked, binary, bare, onSelect === undefined])

  useEffect(() => plot.current?.setData(data), [data, since])

  return (
    <figure class={bare ? 'chart chart-bare' : 'chart'} aria-label={label}>
      <div ref={frame} class="chart-frame" style={{ height: `${height}px` }} aria-hidden="true" />
      {!bare && <Legend drawing={drawing} format={format} at={at.value} stacked={stacked} />}
      {note && <p class="chart-note muted">{note}</p>}
      <figcaption class="visually-hidden">
        {label}, now: {drawing.lines.map((l) => `${l.name} ${formatKnown(lastOf(l.values), format)}`).join('; ')}
      </figcaption>
      {!bare && <ValueTable label={label} drawing={drawing} format={format} />}
    </figure>
  )
}

function formatKnown(value: number | null | undefined, format: (n: number) => string): string {
  return value === null || value === undefined ? 'unknown' : format(value)
}

/** A stack is drawn from its top down, each area over the one before, so that every area shows its own part. */
function dataOf(drawing: Drawing, stacked?: boolean): uPlot.AlignedData {
  const lines = stacked ? stackLines(drawing.lines).reverse() : drawing.lines.map((l) => l.values.slice())
  return [drawing.times, ...lines] as uPlot.AlignedData
}

function toneOfLine(line: Line, index: number): number {
  return ((line.tone ?? index) % 8) + 1
}

interface Look {
  height: number
  stacked?: boolean
  binary?: boolean
  bare?: boolean
  selectable: boolean
}

interface Latest {
  current: { formatTick: (n: number) => string; since?: number; onSelect?: (from: number, to: number) => void }
}

function optionsOf(element: HTMLElement, lines: readonly Line[], look: Look, latest: Latest, onPoint: (index: number | null) => void): uPlot.Options {
  const font = '12px ' + getComputedStyle(element).fontFamily
  const axis: uPlot.Axis = { stroke: resolveColor(element, 'var(--muted)'), grid: { stroke: resolveColor(element, 'var(--line)'), width: 1 }, ticks: { show: false }, font, show: !look.bare }
  const drawn = lines.map((line, i): uPlot.Series => {
    const color = `var(--series-${toneOfLine(line, i)})`
    return {
      label: line.name,
      stroke: resolveColor(element, color),
      fill: look.stacked || look.bare ? resolveColor(element, `color-mix(in oklab, ${color} 30%, var(--surface))`) : undefined,
      width: 1.5,
      spanGaps: false,
      points: { show: false },
    }
  })
  if (look.stacked) drawn.reverse()
  return {
    width: element.clientWidth,
    height: look.height,
    padding: look.bare ? [2, 0, 0, 0] : [8, 24, 0, 0],
    series: [{}, ...drawn],
    axes: [
      { ...axis, space: 64, size: 28, values: (_, splits) => clockTicks(splits) },
      { ...axis, size: 76, incrs: look.binary ? binaryTicks : wholeTicks, values: (_, splits) => splits.map((s) => latest.current.formatTick(s)) },
    ],
    scales: { y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.08 : 1] } },
    cursor: { show: !look.bare, y: false, points: { show: !look.stacked }, drag: { x: look.selectable, y: false, setScale: false } },
    legend: { show: false },
    hooks: {
      drawAxes: [(u) => drawUnknownBefore(u, latest.current.since, resolveColor(element, 'var(--line)'))],
      setCursor: [(u) => onPoint(u.cursor.idx ?? null)],
      setSelect: [
        (u) => {
          if (u.select.width > 4) latest.current.onSelect?.(u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x'))
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false)
        },
      ],
    },
  }
}

/** Hatches the time before which nothing is known: it is not a time without transfers. */
function drawUnknownBefore(u: uPlot, since: number | undefined, color: string): void {
  if (since === undefined) return
  const { left, top, width, height } = u.bbox
  const edge = Math.min(left + width, u.valToPos(since, 'x', true))
  if (!(edge > left)) return
  const { ctx } = u
  const step = 8 * devicePixelRatio
  ctx.save()
  ctx.beginPath()
  ctx.rect(left, top, edge - left, height)
  ctx.clip()
  ctx.beginPath()
  for (let x = left - height; x < edge; x += step) {
    ctx.moveTo(x, top + height)
    ctx.lineTo(x + height, top)
  }
  ctx.strokeStyle = color
  ctx.lineWidth = devicePixelRatio
  ctx.stroke()
  ctx.restore()
}

/** The legend has the values where the pointer is, else the newest. A stack is listed from its top down. */
function Legend({ drawing, format, at, stacked }: { drawing: Drawing; format: (n: number) => string; at: number | null; stacked?: boolean }) {
  const pointed = at === null ? undefined : drawing.times[at]
  const newest = drawing.times[drawing.times.length - 1]
  const time = pointed ?? (isCurrent(drawing, now.peek() / 1000) ? undefined : newest)
  const lines = drawing.lines.map((line, i) => ({ line, tone: toneOfLine(line, i) }))
  if (stacked) lines.reverse()
  return (
    <div class="chart-legend" aria-hidden="true">
      <span class="muted">{time === undefined ? 'Now' : formatClock(time * 1000)}</span>
      {lines.map(({ line, tone }) => (
        <span key={line.name} class="chart-key">
          <span class={`chart-swatch series-${tone}`} />
          {line.name}
          <span class="muted">{formatKnown(pointed === undefined ? lastOf(line.values) : line.values[at!], format)}</span>
        </span>
      ))}
    </div>
  )
}

const tableLength = 24

/** The values as a table, for who cannot see the chart or wants the numbers. */
function ValueTable({ label, drawing, format }: { label: string; drawing: Drawing; format: (n: number) => string }) {
  const open = useSignal(false)
  return (
    <details class="chart-table" onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>Values as a table</summary>
      {open.value && (
        <div class="table-frame" tabIndex={0} role="region" aria-label={label}>
          <table>
            <caption class="visually-hidden">{label}</caption>
            <thead>
              <tr>
                <th scope="col">From</th>
                {drawing.lines.map((l) => (
                  <th key={l.name} scope="col" class="right">
                    {l.name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {tableRows(drawing, tableLength).map((row) => (
                <tr key={row.at}>
                  <th scope="row">{formatClock(row.at * 1000)}</th>
                  {row.values.map((value, i) => (
                    <td key={i} class="right">
                      {formatKnown(value, format)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  )
}

/** Sparkline draws the course of a few values in a line of text. Unknown values are gaps. */
export function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const most = Math.max(...values.map((v) => v ?? 0), 1e-9)
  const step = 64 / Math.max(1, values.length)
  return (
    <svg class="sparkline" viewBox="0 0 64 16" role="img" aria-label={label} preserveAspectRatio="none">
      {values.map((v, i) => v !== null && <rect key={i} x={i * step + 0.5} width={step - 1} y={15 - (14 * v) / most} height={1 + (14 * v) / most} />)}
    </svg>
  )
}
