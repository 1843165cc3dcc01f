import { describe, expect, it } from 'vitest'
import type { MemberDetail, MemberQuarantineDetail, MemberStates, WhyBudget } from './api'
import { countStates, describeChain, explainChain, imageCounts, isSameQuarantine, listCommand, refuseReason } from './clusters'

const chain = (over: Partial<WhyBudget>): WhyBudget => ({ policyConcurrency: 4, policySource: 'fleet default', budget: 4, slots: 2, acknowledged: true, ...over })
const limiting = (c: WhyBudget): string | undefined => explainChain(c).find((l) => l.limits)?.term

describe('explainChain', () => {
  it.each<[string, Partial<WhyBudget>, string | undefined]>([
    ['the policy, where nothing leaves less', {}, 'Policy'],
    ['its own ConfigMap', { ownConcurrency: 2, budget: 2 }, 'Its own ConfigMap'],
    ['a ledger under an older plan', { budget: 3, acknowledged: false }, 'Plan in its ledger'],
    ['the grant', { transfers: { granted: 1, held: 1, wanted: 4 } }, 'Grant'],
    ['a grant of nothing', { transfers: { granted: 0, held: 0, wanted: 4 } }, 'Grant'],
    ['no grant of all that it wants', { transfers: { granted: 0, held: 0, wanted: 0 } }, 'Policy'],
    ['nobody, where nothing is known', { policyConcurrency: undefined, budget: undefined }, undefined],
  ])('is limited by %s', (_, over, want) => expect(limiting(chain(over))).toBe(want))

  it('has one link that limits', () => {
    expect(explainChain(chain({ ownConcurrency: 4, transfers: { granted: 4, held: 4, wanted: 4 } })).filter((l) => l.limits)).toHaveLength(1)
  })
  it('says which plan the cluster works under', () => {
    const note = (c: Partial<WhyBudget>) => explainChain(chain(c), { epoch: 1, sequence: 5 }, { epoch: 1, sequence: 4 })[2]!.note
    expect(note({ acknowledged: false })).toBe('it still works under plan 4; the newest is 5')
    expect(note({})).toBe('it works under the newest plan')
    expect(note({ budget: undefined })).toBe('the cluster has not said yet')
  })
  it('says what is wanted, held and reserved', () => {
    const links = explainChain(chain({ fleetConcurrency: 20, transfers: { granted: 1, held: 2, wanted: 4, heldUntil: '2026-11-26T16:40:00Z' } }))
    expect(links[3]!.note).toMatch(/^of 20 in the fleet; it wants 4; 2 slots are held for it; reserved until .*\d\d:\d\d if it falls silent$/)
  })
  it('says of a silent cluster until when its slots are reserved', () => {
    const links = explainChain(chain({ transfers: { granted: 0, held: 1, wanted: 0, heldUntil: '2026-11-26T16:40:00Z' } }), undefined, undefined, 'silent')
    expect(links[3]!.note).toMatch(/none to a silent cluster; .*reserved until [^f]*$/)
    expect(links[3]!.limits).toBe(true)
  })
  it('leaves out the grant without a budget of the fleet', () => expect(explainChain(chain({}))).toHaveLength(3))
})

describe('describeChain', () => {
  it.each<[Partial<WhyBudget>, string]>([
    [{ ownConcurrency: 2, budget: 1, slots: 1, transfers: { granted: 1, held: 1, wanted: 2 } }, '1 of 1 slot taken: 4 by the policy, 2 by its own ConfigMap, 1 granted.'],
    [{}, '2 of 4 slots taken: 4 by the policy.'],
    [{ slots: undefined, policyConcurrency: undefined }, 'How many slots are taken is unknown.'],
  ])('%j', (over, want) => expect(describeChain(chain(over))).toBe(want))
})

describe('countStates', () => {
  const counts: MemberStates = { total: 5, ready: 3, notReady: 0, failing: 1, stalled: 0, silent: 1, neverReported: 0, quarantined: 0, unknown: 1 }
  it('has what needs somebody first, and only what there is', () => expect(countStates(counts, '').map((s) => s.state)).toEqual(['Silent', 'Failing', 'Ready']))
  it('has what is asked for also where there is none', () => expect(countStates(counts, 'Stalled')[0]).toEqual({ state: 'Stalled', n: 0, label: 'stalled' }))
})

describe('listCommand', () => {
  it.each<[Parameters<typeof listCommand>[0], string | undefined]>([
    [{ search: '', state: '', selector: '' }, 'kubectl ot get clusters'],
    [{ search: '', state: 'unknown', selector: 'region=nordics' }, 'kubectl ot get clusters -l region=nordics --unknown'],
    [{ search: '', state: 'Failing', selector: 'a in (b)' }, "kubectl ot get clusters -l 'a in (b)' --failing"],
    ...['Silent', 'Stalled', 'Quarantined', 'NotReady', 'NeverReported', 'Ready'].map((state): [Parameters<typeof listCommand>[0], undefined] => [{ search: '', state, selector: '' }, undefined]),
    [{ search: 'berg', state: '', selector: '' }, undefined],
  ])('%j', (filter, want) => expect(listCommand(filter)).toBe(want))
})

describe('quarantines', () => {
  it.each([
    ['', 'Say why'],
    [' \t ', 'Say why'],
    ['x'.repeat(257), 'at most 256'],
    ['two\nlines', 'one line'],
    ['\u001b[31m', 'one line'],
  ])('refuses %j', (reason, want) => expect(refuseReason(reason)).toContain(want))
  it('takes a reason as the hub does', () => {
    expect(refuseReason('reports 256 imports')).toBeUndefined()
    expect(refuseReason('ä'.repeat(256))).toBeUndefined()
  })
  it('is shown anew where something else was decided', () => {
    const shown: MemberQuarantineDetail = { member: 'a', quarantined: false, resourceVersion: '1', begin: { effects: ['x'] }, end: { effects: [] } }
    expect(isSameQuarantine(shown, { ...shown, resourceVersion: '2' })).toBe(true)
    expect(isSameQuarantine(shown, { ...shown, quarantined: true, reason: 'other' })).toBe(false)
    expect(isSameQuarantine(shown, { ...shown, begin: { effects: [], refused: 'belongs to argocd' } })).toBe(false)
  })
})

describe('imageCounts', () => {
  it('leaves out what there is none of, and says nothing of what is unknown', () => {
    const counts = { total: 4, queued: 0, syncing: 1, ready: 2, failed: 1, leaving: 0, unreferenced: 0, bytes: 0 }
    expect(imageCounts({ imageCounts: counts } as MemberDetail).map((c) => c.label)).toEqual(['failed', 'importing', 'ready'])
    expect(imageCounts({} as MemberDetail)).toEqual([])
  })
})
