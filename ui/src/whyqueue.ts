// What the Why panel lists of a cluster's queue.
import type { ActiveEntry, QueuedEntry, Why, WhyVerdict } from './api'
import type { Tone } from './components/sign'

export function toneOfVerdict(verdict: WhyVerdict | undefined, isActive: boolean): Tone {
  switch (verdict) {
    case 'Ready':
      return 'good'
    case 'Failed':
      return 'bad'
    case 'WaitsForPerson':
      return 'attention'
    case 'Waits':
      return isActive ? 'moving' : 'waiting'
    default:
      return 'unknown'
  }
}

export interface QueueRow {
  entry: ActiveEntry | QueuedEntry
  /** Place in the queue, from 1; absent for one that runs. */
  place?: number
  isThis: boolean
  note?: string
}

const mostAhead = 5

/** Returns what runs, and what goes first of the queue with the image itself; and how many wait that are not listed. Those right ahead of it matter most. */
export function rowsOfQueue(w: Why): { rows: QueueRow[]; behind: number } {
  const activity = w.activity
  const verdict = w.explanation?.verdict
  if (!activity || verdict === 'Ready' || verdict === 'Failed') return { rows: [], behind: 0 }
  const isThis = (e: { namespace: string; name: string }): boolean => e.namespace === w.namespace && e.name === w.name
  const target = activity.head.findIndex(isThis)
  const rows: QueueRow[] = activity.active.map((entry) => ({ entry, isThis: isThis(entry) }))
  let listed = 0
  activity.head.forEach((entry, i) => {
    const isAhead = target >= 0 && i < target && i >= target - mostAhead
    if (i >= mostAhead && i !== target && !isAhead) return
    listed++
    rows.push({ entry, place: i + 1, isThis: i === target, note: entry.note })
  })
  return { rows, behind: Math.max(activity.queued, activity.head.length) - listed }
}
