import type { ClusterCounts } from '../api'
import { formatNumber } from '../format'
import { clusterStates } from '../lanes'
import '../styles/statebar.css'

/** StateBar shows how many of some clusters are in which state: a bar, and the numbers that are not zero. */
export function StateBar({ counts }: { counts: ClusterCounts }) {
  const total = counts.total ?? 0
  if (total === 0) return <span class="muted">no clusters</span>
  const states = clusterStates.map((s) => ({ ...s, n: s.count(counts) })).filter((s) => s.n > 0)
  const ready = counts.succeeded ?? 0
  const rest = states.filter((s) => s.state !== 'Succeeded' && s.state !== 'ToApply')
  return (
    <span class="statebar">
      <span class="statebar-track" aria-hidden="true">
        {[...states].reverse().map((s) => s.state !== 'ToApply' && <span key={s.state} class={`statebar-part statebar-${s.tone}`} style={{ width: `${(100 * s.n) / total}%` }} />)}
      </span>
      <span class="statebar-text">
        {formatNumber(ready)} of {formatNumber(total)}
        {rest.map((s) => (
          <span key={s.state} class={s.tone === 'bad' ? 'statebar-word-bad' : 'muted'}>
            {formatNumber(s.n)} {s.word}
          </span>
        ))}
      </span>
    </span>
  )
}
