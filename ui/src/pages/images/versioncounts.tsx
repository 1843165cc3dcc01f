import type { ImageVersion } from '../../api'
import { formatNumber } from '../../format'
import { countsOf } from '../../imagestates'
import '../../styles/statebar.css'

/** VersionCounts shows in how many clusters a version is in which state. */
export function VersionCounts({ version, clusters, hrefOf }: { version: ImageVersion; clusters: number; hrefOf?: (state: string) => string }) {
  const counts = countsOf(version)
  if (counts.length === 0) return <span class="muted">in no cluster</span>
  return (
    <span class="statebar">
      <span class="statebar-track" aria-hidden="true">
        {[...counts].reverse().map((s) => s.tone !== 'waiting' && <span key={s.state} class={`statebar-part statebar-${s.tone}`} style={{ width: `${(100 * s.n) / Math.max(1, clusters)}%` }} />)}
      </span>
      <span class="statebar-text">
        {[...counts].reverse().map((s) => {
          const text = `${formatNumber(s.n)} ${s.word}`
          const tone = s.tone === 'bad' ? 'statebar-word-bad' : s.state === 'Ready' ? undefined : 'muted'
          return hrefOf ? (
            <a key={s.state} class={tone} href={hrefOf(s.state)}>
              {text}
            </a>
          ) : (
            <span key={s.state} class={tone}>
              {text}
            </span>
          )
        })}
      </span>
    </span>
  )
}
