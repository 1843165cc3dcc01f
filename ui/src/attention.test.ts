import { describe, expect, it } from 'vitest'
import type { Summary } from './api'
import { tasksOf } from './attention'
import { firstSteps } from './firststeps'
import { moveInGrid } from './gridmoves'
import { parseWhy, whyOf } from './whyaddress'

const empty: Summary = {
  electedAt: '2026-03-02T10:00:00Z',
  policy: { accepted: true },
  members: { total: 0, ready: 0, notReady: 0, failing: 0, stalled: 0, silent: 0, neverReported: 0, quarantined: 0, unknown: 0 },
  images: { images: 0, references: 0, unreferenced: 0, bytes: 0 },
  transfers: { fleet: { used: 0, waiting: 0, waitingMembers: 0 }, sources: [], queued: 0, queuedMembers: 0 },
  rollouts: { total: 0 },
  failing: { images: 0, members: 0 },
  attention: { total: 0 },
}

describe('tasksOf', () => {
  it('is empty where all is well', () => expect(tasksOf(empty)).toEqual({ tasks: [], unnamed: 0 }))

  it('says for each what to do, quoted for a shell', () => {
    const { tasks, unnamed } = tasksOf({
      ...empty,
      rollouts: { total: 1, named: [{ name: 'win-11', version: '24.2', currentWave: 'production', clusters: { total: 1, toApply: 1, progressing: 0, succeeded: 0, failed: 0, timedOut: 0, deferred: 0 } }] },
      attention: {
        total: 7,
        items: [
          { kind: 'FleetDiskImage', name: 'win-11', reason: 'AwaitingApproval', message: 'wave production needs approval' },
          { kind: 'FleetDiskImage', name: 'rhel', reason: 'Paused' },
          { kind: 'FleetDiskImage', name: 'sles', reason: 'MaxFailures' },
          { kind: 'ConfigMap', name: 'policy', reason: 'Refused' },
          { kind: 'ImagePrune', name: 'autumn', reason: 'Stalled' },
        ],
      },
      failing: { images: 3, members: 1, named: [{ member: 'lab', namespace: 'n', name: "x'; reboot", references: 0, reason: 'NotFound' } as never] },
      members: { ...empty.members, silent: 2, neverReported: 1, named: [{ member: 'edge-3', state: 'Silent', since: '2026-03-02T08:00:00Z' }, { member: 'new-1', state: 'NeverReported' }, { member: 'lab', state: 'Failing' }] },
    })
    expect(tasks.map((t) => t.command)).toEqual([
      'kubectl ot rollout approve win-11 --wave production --version 24.2',
      'kubectl ot rollout resume rhel',
      'kubectl ot why rollout sles',
      'kubectl ot policy show',
      'kubectl ot prune status autumn',
      "kubectl ot why image 'x'\\''; reboot' -n n --cluster lab",
      'kubectl ot why cluster edge-3',
      'kubectl ot why cluster new-1',
    ])
    expect(unnamed).toBe(2 + 2 + 1)
    expect(new Set(tasks.map((t) => t.key)).size).toBe(tasks.length)
  })
})

describe('firstSteps', () => {
  it.each([
    [empty, [false, false, false, false], 0],
    [{ ...empty, members: { ...empty.members, total: 1, neverReported: 1 } }, [true, false, false, false], 1],
    [{ ...empty, members: { ...empty.members, total: 1, ready: 1 } }, [true, true, false, false], 2],
    [{ ...empty, members: { ...empty.members, total: 1, ready: 1 }, rollouts: { total: 1 } }, [true, true, true, false], 3],
    [{ ...empty, members: { ...empty.members, total: 1, ready: 1 }, images: { ...empty.images, images: 1, phases: { Succeeded: 1 } } }, [true, true, true, true], -1],
  ] as const)('ticks off what is so', (summary, done, next) => {
    const steps = firstSteps(summary as Summary)
    expect(steps.map((s) => s.done)).toEqual(done)
    expect(steps.findIndex((s) => s.next)).toBe(next)
  })
})

describe('moveInGrid', () => {
  it.each([
    ['ArrowDown', false, { row: 1, column: 2 }],
    ['ArrowUp', false, { row: -1, column: 2 }],
    ['ArrowLeft', false, { row: 0, column: 1 }],
    ['Home', false, { row: 0, column: -1 }],
    ['End', true, { row: 9, column: 4 }],
    ['PageDown', false, { row: 9, column: 2 }],
    ['x', false, undefined],
  ] as const)('goes by %s', (key, ctrl, want) => expect(moveInGrid({ row: 0, column: 2 }, key, ctrl, 10, 5, 20)).toEqual(want))

  it('stays within the grid, and the corner is no place', () => {
    for (const key of ['ArrowUp', 'ArrowDown', 'ArrowLeft', 'ArrowRight', 'Home', 'End', 'PageUp', 'PageDown']) {
      for (let row = -1; row < 3; row++) {
        for (let column = row === -1 ? 0 : -1; column < 2; column++) {
          const at = moveInGrid({ row, column }, key, false, 3, 2, 2)!
          expect(at.row).toBeGreaterThanOrEqual(-1)
          expect(at.row).toBeLessThan(3)
          expect(at.column).toBeGreaterThanOrEqual(at.row === -1 ? 0 : -1)
          expect(at.column).toBeLessThan(2)
        }
      }
    }
  })
})

describe('parseWhy', () => {
  it.each(['a', 'a/b', 'a/b/c/d', '//', 'a//c', '%zz/b/c'])('refuses %s', (text) => expect(parseWhy(text)).toBeUndefined())
  it('is what whyOf wrote', () => expect(parseWhy(whyOf('a/b', 'n n', 'x%'))).toEqual({ cluster: 'a/b', namespace: 'n n', name: 'x%' }))
})
