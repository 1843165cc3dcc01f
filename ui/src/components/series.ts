// Values over time, prepared to be drawn. Unknown is null, and is never taken for zero.
import type { History } from '../api'

export type Values = readonly (number | null)[]

export interface Line {
  name: string
  values: Values
  /** Which colour of the palette; by default that of its place among the lines. */
  tone?: number
}

export interface Drawing {
  /** Seconds since 1970. */
  times: number[]
  lines: Line[]
}

/** Returns the upper edge of each line on top of those before it. Where a line is unknown, it has none, and those above stand on the known ones. */
export function stackLines(lines: readonly Line[]): (number | null)[][] {
  const length = lines[0]?.values.length ?? 0
  const sums = new Array<number>(length).fill(0)
  return lines.map((line) =>
    Array.from({ length }, (_, i) => {
      const value = line.values[i] ?? null
      return value === null ? null : (sums[i] = sums[i]! + value)
    }),
  )
}

/** Returns one series of an answer as lines, with the begin of each point. */
export function drawingOf(history: History, series: string, nameOf: (name: string) => string): Drawing {
  const start = Date.parse(history.start) / 1000
  const length = Math.max(0, ...history.lines.map((l) => l.values[series]?.length ?? 0))
  return {
    times: Array.from({ length }, (_, i) => start + i * history.stepSeconds),
    lines: history.lines.map((l) => ({ name: nameOf(l.name ?? ''), values: l.values[series] ?? [] })),
  }
}

/** Leaves the points from one time to another, and one beyond at each end, so that lines reach the edges. */
export function cropDrawing(drawing: Drawing, from: number, to: number): Drawing {
  const first = Math.max(0, drawing.times.findIndex((t) => t >= from) - 1)
  const after = drawing.times.findIndex((t) => t > to)
  const end = after < 0 ? drawing.times.length : after + 1
  return { times: drawing.times.slice(first, end), lines: drawing.lines.map((l) => ({ ...l, values: l.values.slice(first, end) })) }
}

/** Returns what a sum has beyond the lines that are named. It is unknown where the sum is. */
export function othersOf(sum: Values, lines: readonly Line[]): (number | null)[] {
  return sum.map((value, i) => (value === null ? null : Math.max(0, value - lines.reduce((total, l) => total + (l.values[i] ?? 0), 0))))
}

/** Returns the newest value that is known, and none if the newest points are unknown. */
export function lastOf(values: Values): number | null {
  return values[values.length - 1] ?? values[values.length - 2] ?? null
}

export interface TableRow {
  at: number
  values: (number | null)[]
}

/** Returns means of the lines over at most so many spans of time, for the table beside a chart. */
export function tableRows(drawing: Drawing, most: number): TableRow[] {
  const width = Math.max(1, Math.ceil(drawing.times.length / most))
  const rows: TableRow[] = []
  for (let first = 0; first < drawing.times.length; first += width) {
    rows.push({ at: drawing.times[first]!, values: drawing.lines.map((l) => meanOf(l.values.slice(first, first + width))) })
  }
  return rows
}

function meanOf(values: Values): number | null {
  const known = values.filter((v) => v !== null)
  return known.length === 0 ? null : known.reduce((a, b) => a + b, 0) / known.length
}

/** Distances of ticks for bytes: powers of two, so that they read as 64 MiB. */
export const binaryTicks = Array.from({ length: 60 }, (_, i) => 2 ** i)

/** Distances of ticks for what is counted. */
export const wholeTicks = [1, 2, 5].flatMap((n) => Array.from({ length: 9 }, (_, i) => n * 10 ** i)).sort((a, b) => a - b)

/** Formats times below a chart, in seconds: the day is named where it changes. */
export function clockTicks(times: readonly number[]): string[] {
  let day = new Date((times[0] ?? 0) * 1000).toDateString()
  return times.map((t) => {
    const at = new Date(t * 1000)
    const clock = `${String(at.getHours()).padStart(2, '0')}:${String(at.getMinutes()).padStart(2, '0')}`
    if (at.toDateString() === day) return clock
    day = at.toDateString()
    return `${at.toLocaleDateString('en-US', { weekday: 'short' })} ${clock}`
  })
}

/** Returns how many members were unknown at most, and how many at the newest point. The first points after an election know of nobody yet. */
export function missingIn(history: History): { most: number; now: number } {
  const settled = Date.parse(history.since) / 1000 + 3 * history.stepSeconds
  const start = Date.parse(history.start) / 1000
  const missing = { most: 0, now: 0 }
  for (const line of history.lines) {
    const counts = line.unknownMembers ?? []
    counts.forEach((n, i) => {
      if (start + i * history.stepSeconds >= settled) missing.most = Math.max(missing.most, n)
    })
    missing.now = Math.max(missing.now, counts[counts.length - 1] ?? 0)
  }
  return missing
}

/** Reports whether the newest point of a drawing is of now, and not of a span before. */
export function isCurrent(drawing: Drawing, now: number): boolean {
  const { times } = drawing
  const step = times.length > 1 ? times[1]! - times[0]! : 60
  return times.length > 0 && now - times[times.length - 1]! < 3 * step
}

/** Formats bytes per second at a tick, exactly: 1.25 GiB/s. */
export function formatRateTick(bytesPerSecond: number): string {
  const power = bytesPerSecond < 1 ? 0 : Math.min(6, Math.floor(Math.log2(bytesPerSecond) / 10))
  return `${Math.round((bytesPerSecond / 1024 ** power) * 100) / 100} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'][power]}/s`
}
