import { describe, expect, it } from 'vitest'
import type { ImageState, ImageVersion, PlanItemReport, ReportedImage } from './api'
import { commandsOfImage, countsOf, fateOf, imageStates, stateInCluster, stateOfReported, toneOfImage, wordOfImage } from './imagestates'

const version = (v: Partial<ImageVersion>): ImageVersion => ({ version: '1', namespace: 'n', image: 'i', states: { Ready: 3 }, referenced: 0, unreferenced: 0, ...v })

describe('countsOf', () => {
  it('leaves out what is not there, and says unknown', () => {
    expect(countsOf(version({ states: { Absent: 40, Unknown: 2, Ready: 3, Failed: 1 } })).map((s) => `${s.n} ${s.word}`)).toEqual(['1 failed', '2 unknown', '3 ready'])
  })
  it('has a word for each state but one', () => {
    const all: ImageState[] = ['Unknown', 'Absent', 'Planned', 'Queued', 'Importing', 'Ready', 'Failed', 'Leaving', 'Other']
    expect(all.filter((s) => !imageStates.some((known) => known.state === s))).toEqual(['Absent'])
    expect([wordOfImage('Absent'), toneOfImage('Absent')]).toEqual(['not there', 'quiet'])
  })
})

describe('an image that its cluster has not created', () => {
  const reported = (i: Partial<ReportedImage>): ReportedImage => ({ namespace: 'n', name: 'i', references: 0, ...i })
  it.each<[string, PlanItemReport, string, string, string]>([
    ['waits', { state: 'Waiting', message: 'not created yet' }, 'waiting', 'to come', 'Planned'],
    ['waits for a person', { state: 'Waiting', reason: 'NamespaceMissing', message: 'create it' }, 'attention', 'to come, NamespaceMissing', 'Planned'],
    ['is rejected', { state: 'Rejected', message: 'not allowed' }, 'bad', 'rejected', 'Rejected'],
  ])('%s', (_, plan, tone, inCluster, word) => {
    expect(stateInCluster({ version: '1', state: 'Planned', reported: reported({ plan }) })).toEqual({ word: inCluster, tone })
    expect(stateOfReported(reported({ plan }))).toEqual({ word, tone, reason: plan.reason, message: plan.message })
  })
  it.each<[string, ReportedImage, string, string]>([
    ['ready, and an edit rejected', reported({ uid: '1', phase: 'Succeeded', reason: 'Ready', plan: { state: 'Rejected' } }), 'Succeeded', 'quiet'],
    ['failed', reported({ uid: '1', phase: 'Failed', reason: 'NotFound' }), 'Failed NotFound', 'bad'],
    ['stalled', reported({ uid: '1', phase: 'Queued', stalled: true }), 'Queued', 'attention'],
    ['created, and not processed', reported({ uid: '1', plan: { state: 'Applied' } }), 'new', 'waiting'],
    ['without a UID and a phase', reported({}), 'Unknown', 'unknown'],
  ])('not: %s', (_, i, text, tone) => {
    const state = stateOfReported(i)
    expect([[state.word, state.reason].filter(Boolean).join(' '), state.tone]).toEqual([text, tone])
  })
  it('says why one failed', () => expect(stateInCluster({ version: '1', state: 'Failed', reported: reported({ reason: 'NotFound' }) })).toEqual({ word: 'NotFound', tone: 'bad' }))
})

describe('commandsOfImage', () => {
  const why = ["kubectl ot why image i -n n --cluster 'a b'", "kubectl ot tree image i -n n --cluster 'a b'"]
  const doctor = "kubectl ot doctor --cluster 'a b'"
  it.each<[string, Partial<ReportedImage> | undefined, string[]]>([
    ['not processed', { uid: '1' }, [doctor, ...why]],
    ['planned, and not processed', { uid: '1', plan: { state: 'Applied' } }, [doctor, ...why]],
    ['processed', { uid: '1', phase: 'Queued' }, why],
    ['not created', { plan: { state: 'Waiting' } }, why],
    ['of another, and rejected', { uid: '1', plan: { state: 'Rejected' } }, why],
    ['not reported', undefined, why],
  ])('%s', (_, i, want) => expect(commandsOfImage({ cluster: 'a b', namespace: 'n', name: 'i' }, i && { namespace: 'n', name: 'i', references: 0, ...i })).toEqual(want))
})

describe('fateOf', () => {
  it.each<[string, Partial<ImageVersion>, string | undefined, string]>([
    ['current', { current: true, unreferenced: 3 }, '168h0m0s', 'the current version'],
    ['kept', { kept: true, unreferenced: 3 }, '168h0m0s', 'the newest 2 versions'],
    ['gone', { states: { Absent: 4, Unknown: 1 } }, undefined, 'no cluster is known'],
    ['in use', { referenced: 3 }, undefined, 'machines need it in 3 clusters'],
    ['failed, and needed', { states: { Failed: 5 }, referenced: 1 }, undefined, 'machines need it in 1 cluster'],
    ['failed alone', { states: { Failed: 2 } }, undefined, 'no cluster is known to have it ready'],
    ['failed, and unknown elsewhere', { states: { Failed: 1, Unknown: 3400 } }, undefined, 'no cluster is known to have it ready'],
    ['on its way', { states: { Importing: 1, Queued: 1 } }, '168h0m0s', 'no cluster is known to have it ready'],
    ['in another phase', { states: { Other: 3 } }, undefined, 'no cluster is known to have it ready'],
    ['in another phase, and needed', { states: { Other: 3 }, referenced: 2 }, undefined, 'machines need it in 2 clusters'],
    ['leaving', { states: { Leaving: 2, Absent: 7 }, kept: true }, '168h0m0s', 'is leaving 2 clusters'],
    ['leaving, and needed', { states: { Leaving: 3 }, referenced: 1 }, undefined, 'is leaving 3 clusters: machines still need it in 1'],
    ['leaving, and unknown elsewhere', { states: { Leaving: 1, Unknown: 5 } }, undefined, 'is leaving 1 cluster'],
    ['leaving, and ready elsewhere', { states: { Leaving: 1, Ready: 2 }, unreferenced: 2 }, undefined, 'from 2 clusters, by a prune'],
    ['to come', { states: { Planned: 3 } }, undefined, 'no cluster is known to have it'],
    ['by itself', { unreferenced: 2 }, '168h0m0s', 'for 168h0m0s'],
    ['by a prune', { unreferenced: 1 }, undefined, 'from 1 cluster, by a prune'],
  ])('%s', (_, v, after, text) => expect(fateOf(version(v), 2, after).text).toContain(text))
})
