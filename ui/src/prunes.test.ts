import { expect, test } from 'vitest'
import type { PruneGroup, PruneGroups, PruneReport, TargetCounts } from './api'
import { approveCommand, freeName, isObjectName, namesToSelect, newImagePrune, nextDeletion, reviewCommand, segmentsOf, whoMisses, whyNotApprovable, type Selection } from './prunes'

const selection: Selection = { report: 'spring', digest: '5d1f0c9e', images: [], clusters: [], includeOthers: false, undoWindow: '24h', name: 'spring' }

test('an ImagePrune has the digest of the report and exactly what is ticked', () => {
  const spec = { reportRef: { name: 'spring', digest: '5d1f0c9e' }, includeOthers: false, undoWindow: '24h', deadline: '1h', approvedBy: 'anna', undo: false }
  expect(newImagePrune(selection, 'anna')).toEqual({ apiVersion: 'pelotech.ot/v1alpha1', kind: 'ImagePrune', metadata: { name: 'spring' }, spec })
  expect(newImagePrune({ ...selection, images: ['a/b'], clusters: ['oslo'], includeOthers: true, undoWindow: '1h', name: 'spring-2' }, 'anna')).toEqual({
    apiVersion: 'pelotech.ot/v1alpha1',
    kind: 'ImagePrune',
    metadata: { name: 'spring-2' },
    spec: { ...spec, images: ['a/b'], clusters: ['oslo'], includeOthers: true, undoWindow: '1h' },
  })
})

test('the command says the same', () => {
  expect(approveCommand(selection)).toBe('kubectl ot prune approve spring --digest 5d1f0c9e')
  expect(approveCommand({ ...selection, images: ['a/b-1', 'a/c'], clusters: ['oslo', 'bergen'], includeOthers: true, undoWindow: '1h', name: 'x' })).toBe(
    'kubectl ot prune approve spring --digest 5d1f0c9e --images a/b-1,a/c --clusters oslo,bergen --include-others --undo-window 1h --name x',
  )
  expect(reviewCommand({ ...selection, clusters: ['oslo'] }, 'cluster')).toBe('kubectl ot prune review spring --clusters oslo --by cluster')
  expect(reviewCommand({ ...selection, images: ['a/*'] }, 'image')).toBe("kubectl ot prune review spring --images 'a/*'")
})

const group = (name: string): PruneGroup => ({ name, clusters: 1, images: 1, bytes: 1 })
const shown = (more: Partial<PruneGroups> = {}): PruneGroups => ({
  report: 'r', digest: 'd', by: 'image', total: group(''), leftOut: { count: 0, bytes: 0 }, groups: [group('a/x'), group('a/y')], groupsTotal: 2,
  omitted: { count: 0, bytes: 0 }, tooRecent: { count: 0, bytes: 0 }, ...more,
})

test.each([
  ['one of two', ['a/x'], shown(), ['a/x']],
  ['all', ['a/y', 'a/x'], shown(), []],
  ['all that are shown, and others are too recent', ['a/y', 'a/x'], shown({ tooRecent: { count: 1, bytes: 1 } }), ['a/x', 'a/y']],
  ['all that are shown, and others are not', ['a/y', 'a/x'], shown({ groupsTotal: 3, omitted: { count: 1, bytes: 1 } }), ['a/x', 'a/y']],
])('the names of %s', (_, ticked, groups, want) => {
  expect(namesToSelect(new Set(ticked), groups)).toEqual(want)
})

test('names of new ImagePrunes', () => {
  expect(freeName('spring', [])).toBe('spring')
  expect(freeName('spring', ['spring', 'spring-2', 'autumn'])).toBe('spring-3')
  expect(isObjectName('spring-2')).toBe(true)
  for (const name of ['', 'Spring', 'a_b', '-a', 'a-', 'a'.repeat(254)]) expect(isObjectName(name)).toBe(false)
})

test('who could miss images, in the words of the command line', () => {
  expect(whoMisses({ images: 2, others: 2 })).toBe('made by people')
  expect(whoMisses({ images: 2, others: 1, declaredBy: 'x' })).toBe('1 made by people')
  expect(whoMisses({ images: 2, declaredBy: 'ubuntu' })).toBe('no machine; an old version of ubuntu')
  expect(whoMisses({ images: 2 })).toBe('no machine, no rollout')
})

const report = (more: Partial<PruneReport>): PruneReport => ({
  name: 'r', clusters: { total: 4, answered: 3, unknown: 1 }, candidates: { count: 0, bytes: 0 }, others: { count: 0, bytes: 0 }, undeclared: { count: 0, bytes: 0 }, orphans: { count: 0, bytes: 0 }, ...more,
})

test.each([
  [{ phase: 'Complete' }, undefined],
  [{ phase: 'Collecting' }, 'It is not complete: 3 of 4 clusters have answered.'],
  [{ phase: 'Failed', message: 'too large' }, 'It failed: too large'],
  [{ schedule: '0 6 * * 1', lastReport: 'weekly-1' }, 'It is a schedule: review its last report, weekly-1.'],
  [{ schedule: '0 6 * * 1' }, 'It is a schedule without a report yet.'],
  [{}, 'It is not complete: 3 of 4 clusters have answered.'],
] as [Partial<PruneReport>, string | undefined][])('whether the report %j can be approved', (more, want) => {
  expect(whyNotApprovable(report(more))).toBe(want)
})

test('targets by state', () => {
  const counts: TargetCounts = { total: 6, waiting: 1, pending: 2, pruned: 3, skipped: 0, undone: 0, unknown: 0 }
  expect(segmentsOf(counts).map((s) => `${s.count} ${s.word}`)).toEqual(['3 gone', '2 serve on for the undo window', '1 not started'])
})

test.each([
  [{ phase: 'Running', undo: false }, 1000, 'counting'],
  [{ phase: 'Running', undo: false }, 0, 'deleting'],
  [{ phase: 'Running', undo: false }, undefined, 'starting'],
  [{ phase: 'Running', undo: true }, 1000, 'undoing'],
  [{ phase: 'Undone', undo: true }, 1000, undefined],
  [{ phase: 'Complete', undo: false }, 1000, undefined],
] as const)('what comes next of %j with %s ms left', (p, left, want) => {
  expect(nextDeletion({ ...p, targets: {} as TargetCounts }, left)).toBe(want)
})
