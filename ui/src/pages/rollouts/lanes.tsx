// Waves as lanes: clusters as dots, and time as the axis.
import type { RolloutCluster, RolloutClusters, RolloutDetail, RolloutLane } from '../../api'
import { glyphOf, Sign } from '../../components/sign'
import { Age, Clock } from '../../components/time'
import { formatClock, formatNumber, now, plainText } from '../../format'
import { clustersPerDot, dotsOf, laneStateOf, timeAxisOf, toneOfState, wordOf, type Span } from '../../lanes'
import { useAnswer } from '../../query'
import { href, hrefWith, param } from '../../route'
import { whyOf } from '../../why'
import { Approve } from './writes'

/** Up to so many clusters have a dot with a name, in all lanes together. */
const mostNamed = 200
/** About so many dots stand for the clusters of the largest lane otherwise. */
const mostDots = 120

export function Lanes({ detail }: { detail: RolloutDetail }) {
  const total = detail.clusters.total ?? 0
  const named = useAnswer<RolloutClusters>(total > 0 && total <= mostNamed ? 'rollouts/clusters' : undefined, { name: detail.name, limit: mostNamed }, ['rollouts'])
  const axis = timeAxisOf(detail, now.value)
  if (detail.lanes.length === 0) return <p class="muted">{detail.observed ? 'No cluster of the fleet is selected.' : 'The hub has not reconciled this version yet.'}</p>
  const byWave = new Map<string, RolloutCluster[]>()
  for (const c of named.value.value?.clusters ?? []) byWave.set(c.wave, [...(byWave.get(c.wave) ?? []), c])
  const perDot = clustersPerDot(detail.lanes, mostDots)
  return (
    <div class="lanes">
      {detail.lanes.map((lane, i) => (
        <Lane key={lane.name} detail={detail} lane={lane} spans={axis?.spans[i]} clusters={byWave.get(lane.name)} perDot={perDot} now={axis?.now} />
      ))}
      {axis && (
        <div class="lane-axis" aria-hidden="true">
          <div class="lane-ticks">
            {axis.ticks.map((t) => (
              <span key={t.at} style={{ left: `${100 * t.at}%` }}>
                {formatClock(t.time)}
              </span>
            ))}
          </div>
        </div>
      )}
      {perDot > 1 && <p class="dots-scale muted">A dot is up to {formatNumber(perDot)} clusters.</p>}
    </div>
  )
}

function Lane({ detail: d, lane, spans, clusters, perDot, now: nowAt }: { detail: RolloutDetail; lane: RolloutLane; spans?: Span[]; clusters?: RolloutCluster[]; perDot: number; now?: number }) {
  const state = laneStateOf(lane)
  const total = lane.clusters.total ?? 0
  const canApprove = param('do') === `approve:${lane.name}` || (lane.requireApproval && !lane.approval && d.currentWave !== lane.name && (lane.clusters.toApply ?? 0) > 0)
  return (
    <section class={d.currentWave === lane.name ? 'lane lane-current' : 'lane'} aria-label={`Wave ${lane.name}`}>
      <div class="lane-head">
        <h3>{lane.name}</h3>
        <Sign tone={total === 0 ? 'quiet' : state.tone}>
          {total === 0 ? 'no clusters' : plainText(state.word, 80)} {total > 0 && state.at && <Age at={state.at} />}
        </Sign>
        <span class="muted lane-terms">{termsOf(lane)}</span>
        {canApprove && <Approve detail={d} wave={lane.name} name={`approve:${lane.name}`} />}
      </div>
      <div class="lane-body">
        {clusters ? <NamedDots detail={d} clusters={clusters} /> : <CountedDots lane={lane} perDot={perDot} />}
        <LaneCounts lane={lane} />
        {spans && <LaneTime lane={lane} spans={spans} now={nowAt} expectedAt={d.expectedAt} />}
      </div>
    </section>
  )
}

function termsOf(lane: RolloutLane): string {
  const terms: string[] = []
  if (lane.atATime) terms.push(`${lane.atATime} at a time`)
  if (lane.minSuccessTime) terms.push(`${lane.minSuccessTime} before the next`)
  if (lane.approval) terms.push(`approved by ${plainText(lane.approval.by, 60)}`)
  return terms.join(' · ')
}

function NamedDots({ detail: d, clusters }: { detail: RolloutDetail; clusters: RolloutCluster[] }) {
  const rank = ['Failed', 'TimedOut', 'Deferred', 'Progressing', 'Succeeded', 'ToApply']
  const sorted = [...clusters].sort((a, b) => rank.indexOf(a.state) - rank.indexOf(b.state) || (a.cluster < b.cluster ? -1 : 1))
  return (
    <ul class="dots">
      {sorted.map((c) => {
        const words = `${c.cluster}: ${wordOf(c.state)}${c.reason ? `, ${plainText(c.reason, 64)}` : ''}`
        const to = c.startedAt ? hrefWith({ why: whyOf(c.cluster, d.namespace, d.image) }) : href('clusters', c.cluster)
        return (
          <li key={c.cluster}>
            <a class={`dot dot-${toneOfState(c.state)}`} href={to} aria-label={words} data-words={words}>
              <span aria-hidden="true">{glyphOf(toneOfState(c.state))}</span>
            </a>
          </li>
        )
      })}
    </ul>
  )
}

/** CountedDots stand for clusters by their states alone. */
function CountedDots({ lane, perDot }: { lane: RolloutLane; perDot: number }) {
  const groups = dotsOf(lane.clusters, perDot)
  return (
    <div class="dots" aria-hidden="true">
      {groups.flatMap((g) => Array.from({ length: g.dots }, (_, i) => <span key={`${g.state}${i}`} class={`dot dot-${g.tone}`}>{glyphOf(g.tone)}</span>))}
    </div>
  )
}

function LaneCounts({ lane }: { lane: RolloutLane }) {
  return (
    <ul class="lane-counts">
      {dotsOf(lane.clusters, 1).map((g) => (
        <li key={g.state}>
          <a href={hrefWith({ wave: lane.name, state: g.state, from: undefined })}>
            <Sign tone={g.tone}>
              {formatNumber(g.clusters)} {g.word}
            </Sign>
          </a>
        </li>
      ))}
    </ul>
  )
}

function LaneTime({ lane, spans, now: at, expectedAt }: { lane: RolloutLane; spans: Span[]; now?: number; expectedAt?: string }) {
  return (
    <div class="lane-time">
      {spans.map((s) => (
        <span key={s.kind} class={`lane-span lane-span-${s.kind}`} style={{ left: `${100 * s.from}%`, width: `${Math.max(0.4, 100 * (s.to - s.from))}%` }} aria-hidden="true" />
      ))}
      {at !== undefined && <span class="lane-now" style={{ left: `${100 * at}%` }} aria-hidden="true" />}
      <span class="visually-hidden">
        {lane.startedAt && (
          <>
            started <Clock at={lane.startedAt} />
          </>
        )}
        {lane.doneAt && (
          <>
            , done <Clock at={lane.doneAt} />
          </>
        )}
        {spans.some((s) => s.kind === 'expected') && expectedAt && (
          <>
            , expected <Clock at={expectedAt} />
          </>
        )}
      </span>
    </div>
  )
}
