import { describe, expect, it } from 'vitest'
import type { ClusterCounts, RolloutDetail, RolloutLane } from './api'
import { clustersPerDot, clusterStates, dotsOf, laneStateOf, timeAxisOf, timelineOf, withoutCommand } from './lanes'

const counts = (c: Partial<ClusterCounts>): ClusterCounts => c as ClusterCounts
const lane = (l: Partial<RolloutLane>): RolloutLane => ({ name: 'canary', clusters: counts({ total: 3 }), ...l }) as RolloutLane
const at = (minute: number): string => new Date(Date.UTC(2026, 2, 1, 12, minute)).toISOString()
const ms = (minute: number): number => Date.parse(at(minute))

describe('dotsOf', () => {
  it('is a dot for each cluster of small waves', () => {
    const clusters = counts({ total: 5, succeeded: 3, failed: 2 })
    expect(clustersPerDot([{ clusters }], 100)).toBe(1)
    expect(dotsOf(clusters, 1).map((g) => [g.state, g.dots])).toEqual([
      ['Failed', 2],
      ['Succeeded', 3],
    ])
  })
  it('stays bounded, and hides no state', () => {
    for (let total = 1; total <= 5000; total += 37) {
      const clusters = counts({ total, succeeded: total - 1, failed: 1 })
      const groups = dotsOf(clusters, clustersPerDot([{ clusters }, { clusters: counts({ total: 1 }) }], 100))
      expect(groups.reduce((sum, g) => sum + g.dots, 0)).toBeLessThanOrEqual(100 + clusterStates.length)
      expect(groups.find((g) => g.state === 'Failed')?.dots).toBe(1)
      expect(groups.reduce((sum, g) => sum + g.clusters, 0)).toBe(total)
    }
  })
})

describe('laneStateOf', () => {
  it.each<[Partial<RolloutLane>, string]>([
    [{ doneAt: at(0) }, 'done for'],
    [{ requireApproval: true, clusters: counts({ toApply: 2 }) }, 'needs approval'],
    [{ requireApproval: true, approval: { wave: 'canary', by: 'anna' }, clusters: counts({ toApply: 2 }) }, 'approved by anna'],
    [{ requireApproval: true, clusters: counts({ deferred: 2 }) }, 'to come'],
    [{ clusters: counts({ progressing: 1, toApply: 2 }) }, 'begun'],
    [{}, 'to come'],
  ])('%j', (l, word) => expect(laneStateOf(lane(l)).word).toBe(word))
})

it('does not tick off a wave that was done with failures', () => {
  expect(laneStateOf(lane({ doneAt: at(0) })).tone).toBe('good')
  expect(laneStateOf(lane({ doneAt: at(0), clusters: counts({ total: 3, timedOut: 1 }) })).tone).toBe('attention')
})

describe('timeAxisOf', () => {
  it('spans what ran, what runs and what is expected', () => {
    const lanes = [
      lane({ startedAt: at(0), doneAt: at(10) }),
      lane({ name: 'production', startedAt: at(20), clusters: counts({ total: 4, progressing: 2 }) }),
      lane({ name: 'rest', clusters: counts({ total: 4, toApply: 4 }) }),
    ]
    const axis = timeAxisOf({ lanes, expectedAt: at(40) }, ms(30))!
    expect(axis.spans).toEqual([[{ from: 0, to: 0.25, kind: 'done' }], [{ from: 0.5, to: 0.75, kind: 'running' }], [{ from: 0.75, to: 1, kind: 'expected' }]])
    expect(axis.now).toBe(0.75)
    expect(axis.ticks.map((t) => t.time)).toEqual([ms(0), ms(10), ms(20), ms(30), ms(40)])
  })
  it('ends where all is done', () => {
    const axis = timeAxisOf({ lanes: [lane({ startedAt: at(0), doneAt: at(10) })] }, ms(600))!
    expect([axis.to, axis.now]).toEqual([ms(10), undefined])
  })
  it('draws nothing where no time is known', () => {
    expect(timeAxisOf({ lanes: [lane({})] }, ms(0))).toBeUndefined()
    expect(timeAxisOf({ lanes: [lane({ startedAt: 'yesterday', doneAt: at(3) })] }, ms(0))).toBeUndefined()
  })
})

describe('timelineOf', () => {
  it('says who approved and paused, the newest first, and what has no time before it', () => {
    const detail = {
      version: '24.2',
      lanes: [lane({ startedAt: at(1), doneAt: at(5) })],
      versions: [
        { version: '24.2', since: at(0), approvals: [{ wave: 'production', by: 'anna', at: at(9) }] },
        { version: '24.1', since: at(-90) },
      ],
      paused: { by: 'bea', because: 'it does not boot' },
    } as unknown as RolloutDetail
    expect(timelineOf(detail).map((e) => e.text)).toEqual([
      'paused by bea: it does not boot',
      'anna approved 24.2 for wave production',
      'wave canary was done',
      'wave canary began with 24.2',
      'version 24.2 was published',
      'version 24.1 was published',
    ])
  })
})

it('leaves out a command that the page has a button for, and nothing else', () => {
  expect(withoutCommand(`wave production, with 26 clusters to start, needs approval: kubectl patch fdi win-11 --type=json -p '[{"op"\n}]'`)).toBe('wave production, with 26 clusters to start, needs approval')
  expect(withoutCommand('kubectl is not there: see the log')).toBe('kubectl is not there: see the log')
})
