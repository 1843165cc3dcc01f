// What is said of imports that run and images that wait.
import type { Estimate, History, HistoryPrometheus, Transfer, TransferBudget } from './api'
import { formatBytes, formatClock, formatCount, formatDuration, formatNumber, formatPercent, plainText, toMilliseconds } from './format'

const daySeconds = 24 * 3600

/** What is taken of a budget, and what is said of it. */
export interface Slots {
  /** The slots that the budget counts as taken: those in use, and those held for clusters that may be using them. */
  taken: number
  free?: number
  text: string
  notes: string[]
}

/** Says how many slots of a budget are taken. Every page says it by this: what is held is not free, whoever uses it. */
export function describeSlots(budget: TransferBudget): Slots {
  const { limit, used } = budget
  if (limit === undefined) return { taken: used, text: `${formatCount(used, 'import')}, no limit`, notes: [] }
  const taken = Math.max(used, budget.held ?? 0)
  const free = Math.max(0, limit - taken)
  const least = budget.usedAtLeast ? 'at least ' : ''
  const notes = [free === 0 ? 'none is free' : `${formatNumber(free)} free`]
  if (used < taken) notes.unshift(`${least}${formatNumber(used)} in use`)
  if (budget.reserved) notes.push(`${formatNumber(budget.reserved)} reserved for silent clusters`)
  return { taken, free, text: `${used < taken ? '' : least}${formatNumber(taken)} of ${formatCount(limit, 'slot')}`, notes }
}

/** Says who waits for a source. */
export function describeWaiting(budget: TransferBudget): string {
  if (budget.waiting === 0 && !budget.waitingAtLeast) return 'nothing waits'
  const least = budget.waitingAtLeast ? 'at least ' : ''
  return `${least}${formatCount(budget.waiting, 'image')} ${budget.waiting === 1 ? 'waits' : 'wait'} in ${formatCount(budget.waitingMembers, 'cluster')}`
}

/** Says since when downloads are counted: 24 hours, since Prometheus has them, or since the replica that answers is elected. */
export function describeSince(electedAt: string, past: HistoryPrometheus | undefined, now: number): { short: string; long: string } {
  const since = past?.from !== undefined && toMilliseconds(past.from) < toMilliseconds(electedAt) ? past.from : electedAt
  if (now - toMilliseconds(since) >= (daySeconds - tolerance) * 1000) return { short: 'in 24 h', long: 'in the last 24 hours' }
  const short = `since ${formatClock(since)}`
  return { short, long: since === electedAt ? `${short}, when this replica was elected` : `${short}, as Prometheus has it` }
}

/** A point of the history may be that much wider than what it is asked for. */
const tolerance = 20 * 60

/** Returns what is said of the time before a replica was elected, and before which time nothing is known, in seconds. first is that of the first point that is shown. */
export function describePast(history: History, first: number): { unknownBefore?: number; notes: string[] } {
  const elected = toMilliseconds(history.since) / 1000
  if (elected <= first) return { notes: [] }
  const past = history.prometheus
  const notes: string[] = []
  const electedText = `${formatClock(history.since)}, when this replica was elected`
  const from = past?.from === undefined ? elected : Math.min(elected, toMilliseconds(past.from) / 1000)
  if (from < elected) {
    notes.push(`What was before ${electedText}, is from Prometheus.`)
    if (from > first) notes.push(`Before ${formatClock(from * 1000)} it is unknown, not zero.`)
  } else {
    notes.push(`Shown since ${electedText}: what was before is unknown, not zero.`)
  }
  if (past?.problem) notes.push(`Prometheus does not answer: ${plainText(past.problem, 200)}`)
  return from > first ? { unknownBefore: from, notes } : { notes }
}

export interface Expectation {
  /** When, as 16:42, or as how long. Absent where there is no estimate. */
  at?: string
  left?: string
  /** The range, where it is wider than what is shown. */
  range?: string
  /** Why there is no estimate. */
  why?: string
}

/** Says when something is expected, or why there is no estimate. */
export function describeExpectation(estimate: Estimate | undefined, now: number): Expectation {
  if (estimate?.at === undefined) return { why: estimate?.message ?? 'nothing is known of it' }
  const left = toMilliseconds(estimate.at) - now
  const said: Expectation = {
    at: `${estimate.atMost ? 'by ' : ''}${formatClock(estimate.at)}`,
    left: left > 0 ? `${estimate.atMost ? '≤ ' : ''}${formatDuration(left)}` : anyMoment,
  }
  if (estimate.earliest !== undefined && estimate.latest !== undefined) {
    const from = formatClock(estimate.earliest)
    const to = formatClock(estimate.latest)
    if (from !== to) said.range = `${from}–${to}`
  }
  return said
}

/** Says when something is expected by how long that is from now, as in 5m, at most 5m, or at any moment. */
export function sayWithin(left: string | undefined): string {
  if (left === undefined) return ''
  return left === anyMoment ? `at ${anyMoment}` : `in ${left.replace('≤ ', 'at most ')}`
}

const anyMoment = 'any moment'

/** Says how far an import is. Its share is absent where the size is unknown or only bounded. */
export function describeProgress(transfer: Transfer): { share?: number; text: string } {
  const { bytesDone, bytes, atMost } = transfer
  if (bytesDone === undefined) return { text: 'unknown' }
  if (bytes === undefined || bytes <= 0) return { text: `${formatBytes(bytesDone)} of an unknown size` }
  if (atMost) return { text: `${formatBytes(bytesDone)} of at most ${formatBytes(bytes)}` }
  const share = Math.min(1, bytesDone / bytes)
  return { share, text: `${formatPercent(share)} of ${formatBytes(bytes)}` }
}

/** Says which machines wait for an image. Nothing where that is unknown or none does. */
export function describeHolders(transfer: Transfer): string | undefined {
  const n = transfer.references
  return n ? `${formatCount(n, 'machine')} ${n === 1 ? 'waits' : 'wait'}` : undefined
}

/** Says how many images wait that clusters do not name. Their sources and names are unknown: a filter may leave out any of them. */
export function describeUnlisted(unlisted: number, isFiltered: boolean): string {
  if (isFiltered) return `Up to ${formatCount(unlisted, 'more image')}, of unknown sources and names: clusters name the first of their queues only.`
  return `${formatCount(unlisted, 'more image waits', 'more images wait')} behind these: clusters name the first of their queues only.`
}

export interface Span {
  /** In seconds since 1970. */
  from: number
  to: number
}

/** The shortest span that a chart shows. */
const shortestSpan = 5 * 60

/** Returns the span of time that an address names; none for what is not one of the last 24 hours. */
export function parseSpan(from: string, to: string, now: number): Span | undefined {
  const span = { from: Number(from), to: Number(to) }
  const seconds = now / 1000
  if (from === '' || to === '' || !Number.isFinite(span.from) || !Number.isFinite(span.to)) return undefined
  if (span.from < seconds - daySeconds || span.from > seconds - shortestSpan || span.to - span.from < shortestSpan) return undefined
  return span
}

/** Returns the address of a span that was marked: of at least the shortest span, and of whole minutes. */
export function formatSpan(from: number, to: number): { from: string; to: string } {
  const end = Math.ceil(Math.max(to, from + shortestSpan) / 60) * 60
  return { from: String(Math.floor(from / 60) * 60), to: String(end) }
}

/** The windows to choose from, in hours. */
export const windows = [24, 6, 1]

const pointsShown = 144
const mostPoints = 1440

/** How the history is asked for: of the fleet and its sources by the minute, of clusters by five minutes. */
export type Grain = 'minute' | 'fiveMinutes'

/** Returns what to ask of the history for a window in hours or a span: the answer always ends now. It stays the same for a quarter of an hour, so that it is not asked for as another one each minute. By five minutes, sums over the fleet have the same points as clusters. */
export function historyQuery(hours: number, span: Span | undefined, now: number, grain: Grain = 'minute'): { window: string; points: number } {
  const minutes = span ? Math.min(24 * 60, Math.ceil((now / 1000 - span.from) / 900) * 15) : hours * 60
  const window = span ? `${minutes}m` : `${hours}h`
  if (grain === 'fiveMinutes') return { window, points: Math.ceil(minutes / 5) }
  const points = span ? Math.ceil((pointsShown * minutes * 60) / (span.to - span.from)) : pointsShown
  return { window, points: Math.min(mostPoints, minutes, points) }
}

/** Says how the images that wait are sorted. None of them has a rate: by that, they are in the order of their clusters. */
export function describeQueueOrder(sort: string): string {
  switch (sort) {
    case 'oldest':
      return 'by how long they have waited'
    case 'rate':
    case 'cluster':
      return 'by cluster'
    case 'image':
      return 'by image'
    default:
      return 'by when they are expected to be ready'
  }
}
