// How the waves of a rollout are drawn: clusters as dots, and when each wave ran.
import type { ClusterCounts, ClusterState, RolloutDetail, RolloutLane } from './api'
import type { Tone } from './components/sign'

/** The states of clusters in the order in which they are drawn, each with its word. */
export const clusterStates: readonly { state: ClusterState; word: string; tone: Tone; count: (c: ClusterCounts) => number }[] = [
  { state: 'Failed', word: 'failed', tone: 'bad', count: (c) => c.failed ?? 0 },
  { state: 'TimedOut', word: 'timed out', tone: 'bad', count: (c) => c.timedOut ?? 0 },
  { state: 'Deferred', word: 'offline', tone: 'unknown', count: (c) => c.deferred ?? 0 },
  { state: 'Progressing', word: 'in progress', tone: 'moving', count: (c) => c.progressing ?? 0 },
  { state: 'Succeeded', word: 'ready', tone: 'good', count: (c) => c.succeeded ?? 0 },
  { state: 'ToApply', word: 'to come', tone: 'waiting', count: (c) => c.toApply ?? 0 },
]

export function wordOf(state: ClusterState): string {
  return clusterStates.find((s) => s.state === state)?.word ?? state
}

export function toneOfState(state: ClusterState): Tone {
  return clusterStates.find((s) => s.state === state)?.tone ?? 'unknown'
}

export interface DotGroup {
  state: ClusterState
  word: string
  tone: Tone
  clusters: number
  dots: number
}

/** Returns how many clusters a dot stands for, so that the largest wave has about most dots. It is the same for all waves. */
export function clustersPerDot(lanes: readonly { clusters: ClusterCounts }[], most: number): number {
  return Math.max(1, Math.ceil(Math.max(0, ...lanes.map((l) => l.clusters.total ?? 0)) / most))
}

/** Returns how many dots stand for the clusters of each state. Where there is a cluster, there is a dot. */
export function dotsOf(counts: ClusterCounts, perDot: number): DotGroup[] {
  return clusterStates
    .map(({ state, word, tone, count }) => ({ state, word, tone, clusters: count(counts), dots: Math.ceil(count(counts) / perDot) }))
    .filter((g) => g.clusters > 0)
}

export type LaneState = { tone: Tone; word: string; at?: string }

/** Says where a wave is, in the words of kubectl ot rollout status. */
export function laneStateOf(lane: RolloutLane): LaneState {
  if (lane.doneAt) return { tone: (lane.clusters.failed ?? 0) + (lane.clusters.timedOut ?? 0) > 0 ? 'attention' : 'good', word: 'done for', at: lane.doneAt }
  if (lane.requireApproval && !lane.approval && (lane.clusters.toApply ?? 0) > 0) return { tone: 'attention', word: 'needs approval' }
  if ((lane.clusters.progressing ?? 0) > 0) return { tone: 'moving', word: 'begun' }
  if (lane.approval) return { tone: 'waiting', word: `approved by ${lane.approval.by}` }
  return { tone: 'waiting', word: 'to come' }
}

export interface Span {
  from: number
  to: number
  kind: 'done' | 'running' | 'expected'
}

export interface TimeAxis {
  from: number
  to: number
  /** Spans of each lane, as shares of the axis from 0 to 1. */
  spans: Span[][]
  now?: number
  ticks: { at: number; time: number }[]
}

/** Returns the axis of the waves' times; nothing where no time is known. */
export function timeAxisOf(detail: Pick<RolloutDetail, 'lanes' | 'expectedAt'>, now: number): TimeAxis | undefined {
  const times = detail.lanes.map((l) => ({
    started: parse(l.startedAt),
    done: parse(l.doneAt),
    open: (l.clusters.progressing ?? 0) > 0,
  }))
  const expected = parse(detail.expectedAt)
  const isRunning = times.some((t) => t.open) || (expected !== undefined && expected > now)
  const known = times.flatMap((t) => [t.started, t.done]).filter((t) => t !== undefined)
  if (isRunning) known.push(now)
  if (expected !== undefined) known.push(expected)
  if (known.length < 2) return undefined
  const from = Math.min(...known)
  const to = Math.max(...known)
  if (to - from < 1000) return undefined
  const share = (t: number): number => Math.min(1, Math.max(0, (t - from) / (to - from)))
  // What is expected is expected of the last wave that is not done.
  const last = times.findLastIndex((t, i) => t.done === undefined && hasClusters(detail.lanes[i]!))
  const spans = times.map((t, i): Span[] => {
    const lane: Span[] = []
    if (t.started !== undefined) {
      if (t.done !== undefined) lane.push({ from: share(t.started), to: share(t.done), kind: 'done' })
      else lane.push({ from: share(t.started), to: share(now), kind: 'running' })
    }
    if (i === last && expected !== undefined && expected > now) lane.push({ from: share(now), to: share(expected), kind: 'expected' })
    return lane
  })
  return { from, to, spans, now: isRunning ? share(now) : undefined, ticks: [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, time: from + at * (to - from) })) }
}

function hasClusters(lane: RolloutLane): boolean {
  return (lane.clusters.total ?? 0) > 0
}

function parse(time: string | undefined): number | undefined {
  const at = time === undefined ? NaN : Date.parse(time)
  return Number.isFinite(at) ? at : undefined
}

export interface TimelineEvent {
  /** Absent for what is recorded without a time. */
  at?: string
  tone: Tone
  text: string
}

/** Returns what is recorded of a rollout, the newest first: versions, waves, and who approved and paused. */
export function timelineOf(detail: RolloutDetail): TimelineEvent[] {
  const events: TimelineEvent[] = []
  for (const lane of detail.lanes) {
    if (lane.startedAt) events.push({ at: lane.startedAt, tone: 'moving', text: `wave ${lane.name} began with ${detail.version}` })
    if (lane.doneAt && hasClusters(lane)) events.push({ at: lane.doneAt, tone: 'good', text: `wave ${lane.name} was done` })
  }
  for (const version of detail.versions) {
    events.push({ at: version.since, tone: 'quiet', text: `version ${version.version} was published` })
    for (const a of version.approvals ?? []) events.push({ at: a.at, tone: 'good', text: `${a.by} approved ${version.version} for wave ${a.wave}` })
  }
  if (detail.blockedSince) events.push({ at: detail.blockedSince, tone: 'attention', text: 'every cluster in progress waits for a person' })
  if (detail.lastSuccessAt) events.push({ at: detail.lastSuccessAt, tone: 'good', text: 'the last cluster became ready' })
  if (detail.paused) {
    const because = detail.paused.because ? `: ${detail.paused.because}` : ''
    events.push({ tone: 'attention', text: `paused${detail.paused.by ? ` by ${detail.paused.by}` : ''}${because}` })
  }
  if (detail.retryRequested) events.push({ tone: 'moving', text: 'failed clusters are to start over' })
  return events.sort((a, b) => (parse(b.at) ?? Infinity) - (parse(a.at) ?? Infinity) || 0)
}

/** Returns a message of the hub without the command at its end: the page has a button for it. */
export function withoutCommand(message: string): string {
  return message.replace(/: kubectl (patch|ot) .*$/s, '')
}
