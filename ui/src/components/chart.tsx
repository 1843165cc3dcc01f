// Lines over time. uPlot is loaded with the first chart.
import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { resolveColor, theme } from '../theme'

export interface Line {
  name: string
  values: (number | null)[]
}

/** Chart draws values over time, in seconds since 1970. Unknown values are gaps, and never zero. The same numbers are in the table that readers of the screen get. */
export function Chart({ label, times, lines, format, height = 160, onSelect }: { label: string; times: number[]; lines: Line[]; format: (n: number) => string; height?: number; onSelect?: (from: number, to: number) => void }) {
  const frame = useRef<HTMLDivElement>(null)
  const dark = theme.dark.value
  useEffect(() => {
    let plot: uPlot | undefined
    let ended = false
    const resize = new ResizeObserver(() => {
      if (plot && frame.current) plot.setSize({ width: frame.current.clientWidth, height })
    })
    void import('uplot').then(({ default: Plot }) => {
      if (ended || !frame.current) return
      const style = getComputedStyle(frame.current)
      const color = (name: string): string => style.getPropertyValue(name).trim()
      const axis = { stroke: resolveColor(frame.current, '--muted'), grid: { stroke: resolveColor(frame.current, '--line'), width: 1 }, ticks: { show: false }, font: '12px ' + color('--font') }
      plot = new Plot(
        {
          width: frame.current.clientWidth,
          height,
          series: [{}, ...lines.map((line, i) => ({ label: line.name, stroke: resolveColor(frame.current!, `--series-${(i % 8) + 1}`), width: 1.5, spanGaps: false, points: { show: false }, value: (_: uPlot, v: number | null) => (v === null ? 'unknown' : format(v)) }))],
          axes: [axis, { ...axis, size: 72, values: (_: uPlot, splits: number[]) => splits.map(format) }],
          scales: { y: { range: (_: uPlot, _min: number, max: number) => [0, max > 0 ? max * 1.1 : 1] } },
          cursor: { drag: { x: onSelect !== undefined, y: false, setScale: false } },
          legend: { live: lines.length <= 8 },
          hooks: onSelect && {
            setSelect: [
              (u: uPlot) => {
                if (u.select.width > 4) onSelect(u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x'))
              },
            ],
          },
        },
        [times, ...lines.map((l) => l.values)] as uPlot.AlignedData,
        frame.current,
      )
      resize.observe(frame.current)
    })
    return () => {
      ended = true
      resize.disconnect()
      plot?.destroy()
    }
  }, [times, lines, dark, height])
  return (
    <figure class="chart" aria-label={label}>
      <div ref={frame} aria-hidden="true" />
      <figcaption class="visually-hidden">
        {label}:{' '}
        {lines.map((l) => {
          const last = l.values.findLast((v) => v !== null)
          return `${l.name} ${last === null || last === undefined ? 'unknown' : format(last)}; `
        })}
      </figcaption>
    </figure>
  )
}

/** Sparkline draws the course of a few values in a line of text. */
export function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const most = Math.max(...values.map((v) => v ?? 0), 1e-9)
  const step = 64 / Math.max(1, values.length)
  return (
    <svg class="sparkline" viewBox="0 0 64 16" role="img" aria-label={label} preserveAspectRatio="none">
      {values.map((v, i) => v !== null && <rect key={i} x={i * step + 0.5} width={step - 1} y={15 - (14 * v) / most} height={1 + (14 * v) / most} />)}
    </svg>
  )
}
