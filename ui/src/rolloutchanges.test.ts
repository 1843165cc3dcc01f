import { describe, expect, it } from 'vitest'
import type { FleetDiskImage } from './api'
import { approvedMeanwhile, approvalBlocked, approvalPatch, isOutdated, isSameRollout, pausePatch, retryPatch } from './rolloutchanges'

const at = Date.parse('2026-03-01T12:00:00.250Z')

function newImage(change: (img: FleetDiskImage) => void = () => {}): FleetDiskImage {
  const img = {
    metadata: { name: 'win-11', uid: 'u', generation: 4, resourceVersion: '4711' },
    spec: {
      version: '24.2',
      targetNamespace: 'images',
      template: { name: 'win-11', sourceType: 'http', url: 'https://a/24.2', diskSize: '64Gi' },
      placement: {},
      rollout: { waves: [{ name: 'canary', clusterSelector: {} }, { name: 'production', clusterSelector: {}, requireApproval: true }] },
      approvals: [{ wave: 'production', version: '24.1', by: 'bea' }],
    },
    status: { observedGeneration: 4, clusters: {} },
  } as unknown as FleetDiskImage
  change(img)
  return img
}

describe('approvalPatch', () => {
  it('adds one approval to the generation that was read', () => {
    expect(approvalPatch(newImage(), 'production', 'anna', at)).toEqual([
      { op: 'test', path: '/metadata/uid', value: 'u' },
      { op: 'test', path: '/metadata/generation', value: 4 },
      { op: 'add', path: '/spec/approvals/-', value: { wave: 'production', version: '24.2', by: 'anna', at: '2026-03-01T12:00:00Z' } },
    ])
  })
  it('names sources', () => expect(approvalPatch(newImage(), 'production', 'anna', at, ['a', 'b'])[2]?.value).toMatchObject({ sources: ['a', 'b'], by: 'anna' }))
  it('replaces the entry of the wave and version', () => {
    const img = newImage((i) => i.spec.approvals!.push({ wave: 'production', version: '24.2', by: 'bea' }))
    expect(approvalPatch(img, 'production', 'anna', at, ['a'])[2]).toEqual({
      op: 'replace',
      path: '/spec/approvals/1',
      value: { wave: 'production', version: '24.2', sources: ['a'], by: 'anna', at: '2026-03-01T12:00:00Z' },
    })
  })
  it('adds the list where there is none', () => {
    expect(approvalPatch(newImage((i) => delete i.spec.approvals), 'production', 'anna', at)[2]).toEqual({ op: 'add', path: '/spec/approvals', value: [] })
  })
})

describe('isSameRollout', () => {
  it.each<[string, (img: FleetDiskImage) => void]>([
    ['approvals of others', (i) => i.spec.approvals!.push({ wave: 'canary', version: '24.2', by: 'bea' })],
    ['a status', (i) => (i.status = undefined)],
    ['a generation', (i) => (i.metadata!.generation = 9)],
    ['the order of fields', (i) => (i.spec.template = { diskSize: '64Gi', url: 'https://a/24.2', sourceType: 'http', name: 'win-11' })],
    ['what is false and what is absent', (i) => (i.spec.rollout!.paused = false)],
  ])('holds after %s', (_, change) => expect(isSameRollout(newImage(), newImage(change))).toBe(true))
  it.each<[string, (img: FleetDiskImage) => void]>([
    ['version', (i) => (i.spec.version = '24.3')],
    ['source', (i) => (i.spec.template.url = 'https://b')],
    ['another object of the name', (i) => (i.metadata!.uid = 'v')],
    ['namespace', (i) => (i.spec.targetNamespace = 'other')],
    ['pause', (i) => (i.spec.rollout!.paused = true)],
    ['waves', (i) => i.spec.rollout!.waves!.pop()],
    ['placement', (i) => (i.spec.placement = { clusterNames: ['bergen'] })],
    ['concurrency', (i) => (i.spec.rollout!.maxConcurrency = 7)],
  ])('does not hold after a change: %s', (_, change) => expect(isSameRollout(newImage(), newImage(change))).toBe(false))
})

describe('approvalBlocked', () => {
  const reach = { uid: 'u', generation: 4, version: '24.2', observed: true }
  const bea = { wave: 'production', version: '24.2', by: 'bea' }
  it.each<[string, Parameters<typeof approvalBlocked>, string | undefined]>([
    ['what was shown', [newImage(), 'production', reach], undefined],
    ['a wave that needs none', [newImage(), 'canary', reach], 'Wave canary of win-11 needs no approval.'],
    ['somebody else was faster', [newImage(), 'production', { ...reach, generation: 5, approval: bea }], 'Wave production of win-11 24.2 is approved already, by bea.'],
    ['somebody else was faster, and the hub has not followed', [newImage(), 'production', { ...reach, generation: 5, observed: false, approval: bea }], 'Wave production of win-11 24.2 is approved already, by bea.'],
    ['the hub knows less than was shown', [newImage(), 'production', { ...reach, generation: 3, version: '24.1' }], 'What it reaches is being read.'],
    ['the hub has not reconciled it', [newImage(), 'production', { ...reach, observed: false }], 'What it reaches is being read.'],
    ['the hub had not reconciled it when it was shown', [newImage((i) => (i.status!.observedGeneration = 3)), 'production', reach], undefined],
    ['another version', [newImage(), 'production', { ...reach, generation: 5, version: '24.3' }], 'FleetDiskImage win-11 has changed since it was shown, and is at version 24.3 now: close this, and look at it again.'],
    ['another object of the name', [newImage(), 'production', { ...reach, uid: 'v', generation: 1 }], 'FleetDiskImage win-11 has changed since it was shown, and is at version 24.2 now: close this, and look at it again.'],
    ['another change of the same version', [newImage(), 'production', { ...reach, generation: 5 }], 'FleetDiskImage win-11 has changed since it was shown: close this, and look at it again.'],
    ['the sources that were shown', [newImage(), 'production', { ...reach, approveSources: ['a', 'b'] }, ['a', 'b']], undefined],
    ['fewer sources than were shown', [newImage(), 'production', { ...reach, approveSources: ['b'] }, ['a', 'b']], undefined],
    ['another source than was shown', [newImage(), 'production', { ...reach, approveSources: ['a', 'c'] }, ['a', 'b']], 'Clusters of wave production get another source than was shown, as by a label: close this, and look at it again.'],
    ['a source where none was shown', [newImage(), 'production', { ...reach, approveSources: ['a'] }, []], 'Clusters of wave production get another source than was shown, as by a label: close this, and look at it again.'],
  ])('%s', (_, given, want) => expect(approvalBlocked(...given)).toBe(want))
})

it('knows who has approved this version', () => {
  expect(approvedMeanwhile(newImage(), newImage(), 'production')).toBeUndefined()
  const approved = (sources?: string[]) => newImage((i) => i.spec.approvals!.push({ wave: 'production', version: '24.2', by: 'bea', sources }))
  expect(approvedMeanwhile(newImage(), approved(), 'production')).toContain('by bea')
  expect(approvedMeanwhile(approved(), approved(), 'production')).toBeUndefined() // it was shown, and sources are added to it
  expect(approvedMeanwhile(approved(['a']), approved(['a', 'b']), 'production')).toContain('by bea')
})

describe('pausePatch', () => {
  it('says who and why', () => {
    expect(pausePatch(newImage(), true, 'anna', ' it does not boot ')).toEqual({
      metadata: { resourceVersion: '4711', annotations: { 'pelotech.ot/paused-by': 'anna', 'pelotech.ot/paused-because': 'it does not boot' } },
      spec: { rollout: { paused: true } },
    })
  })
  it('leaves nothing of a pause', () => {
    expect(pausePatch(newImage(), false, 'anna', '')).toEqual({
      metadata: { resourceVersion: '4711', annotations: { 'pelotech.ot/paused-by': null, 'pelotech.ot/paused-because': null } },
      spec: { rollout: { paused: null } },
    })
  })
})

describe('retryPatch', () => {
  const clustersOf = (img: FleetDiskImage, ...clusters: string[]): unknown => (retryPatch(img, clusters, at) as { spec: { retry: { clusters: unknown } } }).spec.retry.clusters
  it('is a new token', () => {
    expect(retryPatch(newImage(), ['oslo'], at)).toEqual({ metadata: { resourceVersion: '4711' }, spec: { retry: { token: '2026-03-01T12:00:00.250Z', clusters: ['oslo'] } } })
  })
  it('does not lose a request that is not followed yet', () => {
    const open = newImage((i) => (i.spec.retry = { token: 'a', clusters: ['oslo', 'bergen'] }))
    expect(clustersOf(open, 'lund', 'oslo')).toEqual(['bergen', 'lund', 'oslo'])
    expect(clustersOf(newImage((i) => (i.spec.retry = { token: 'a' })), 'lund')).toBeNull()
    expect(clustersOf(open)).toBeNull()
    open.status!.observedRetry = 'a'
    expect(clustersOf(open, 'lund')).toEqual(['lund'])
  })
})

it('knows the answers to a patch that came too late', () => {
  expect(isOutdated(409, '')).toBe(true)
  expect(isOutdated(422, 'the server rejected our request due to an error in our request')).toBe(true)
  expect(isOutdated(422, 'spec.approvals: by must be you')).toBe(false)
  expect(isOutdated(403, '')).toBe(false)
})
