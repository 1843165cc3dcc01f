// What people change of a FleetDiskImage, as kubectl ot does: the same patches of the same fields.
import type { FleetDiskImage, RolloutReach } from './api'
import { plainText } from './format'

export interface PatchOperation {
  op: 'add' | 'test' | 'replace'
  path: string
  value: unknown
}

/** Returns the time as approvals have it: whole seconds, in UTC. */
export function stampOf(milliseconds: number): string {
  return new Date(milliseconds).toISOString().replace(/\.\d+Z$/, 'Z')
}

/** Adds an approval to what is stored, if the FleetDiskImage is still the one that was shown: approvals of others that come meanwhile stay. The list has one of a wave and version, which sources are added to. */
export function approvalPatch(img: FleetDiskImage, wave: string, by: string, now: number, sources: string[] = []): PatchOperation[] {
  const patch: PatchOperation[] = [
    { op: 'test', path: '/metadata/uid', value: img.metadata?.uid },
    { op: 'test', path: '/metadata/generation', value: img.metadata?.generation },
  ]
  const value = { wave, version: img.spec.version, ...(sources.length > 0 ? { sources } : {}), by, at: stampOf(now) }
  if (!img.spec.approvals) patch.push({ op: 'add', path: '/spec/approvals', value: [] })
  const former = img.spec.approvals?.findIndex((a) => a.wave === wave && a.version === img.spec.version) ?? -1
  patch.push(former < 0 ? { op: 'add', path: '/spec/approvals/-', value } : { op: 'replace', path: `/spec/approvals/${former}`, value })
  return patch
}

/** Reports whether what was shown to a person has not changed: which version, of which source, goes where, and by whose leave. Approvals of others, and retries, are no part of it. */
export function isSameRollout(shown: FleetDiskImage, now: FleetDiskImage): boolean {
  const compared = (img: FleetDiskImage): string =>
    stable([img.metadata?.uid, { ...img.spec, approvals: undefined, retry: undefined, rollout: { ...img.spec.rollout, paused: img.spec.rollout?.paused ?? false } }])
  return compared(shown) === compared(now)
}

/** Returns JSON that does not depend on the order of fields. */
function stable(value: unknown): string {
  return JSON.stringify(value, (_, v: unknown) =>
    v !== null && typeof v === 'object' && !Array.isArray(v) ? Object.fromEntries(Object.entries(v).sort(([a], [b]) => (a < b ? -1 : 1))) : v,
  )
}

/** Says that somebody has approved a wave since it was shown, and who; undefined where nobody has. What they approved is not replaced unseen. */
export function approvedMeanwhile(shown: FleetDiskImage, img: FleetDiskImage, wave: string): string | undefined {
  const find = (of: FleetDiskImage) => of.spec.approvals?.find((a) => a.wave === wave && a.version === img.spec.version)
  const approval = find(img)
  return approval && stable(approval) !== stable(find(shown)) ? approvedAlready(img, wave, approval.by) : undefined
}

function approvedAlready(img: FleetDiskImage, wave: string, by: string): string {
  return `Wave ${wave} of ${img.metadata?.name} ${img.spec.version} is approved already, by ${plainText(by, 100)}.`
}

/** Why nothing can be approved: img is what was stored when a person opened the dialog, and sources are what it named then, reach what the hub says of it now. Both change while the dialog is open, reach also with the labels of clusters. undefined where it can be approved. */
export function approvalBlocked(
  img: FleetDiskImage,
  wave: string,
  reach: Pick<RolloutReach, 'uid' | 'generation' | 'version' | 'observed' | 'approval' | 'approveSources'>,
  sources?: string[],
): string | undefined {
  const { name, uid, generation = 0 } = img.metadata ?? {}
  const changed = `FleetDiskImage ${name} has changed since it was shown`
  if (reach.uid !== uid) return `${changed}, and is at version ${reach.version} now: close this, and look at it again.`
  // The hub's answer is older than what was stored then: it is asked for again when it changes.
  if (reach.generation < generation) return 'What it reaches is being read.'
  if (reach.version !== img.spec.version) return `${changed}, and is at version ${reach.version} now: close this, and look at it again.`
  if (reach.approval) return approvedAlready(img, wave, reach.approval.by)
  if (!reach.observed) return 'What it reaches is being read.'
  if (reach.generation > generation) return `${changed}: close this, and look at it again.`
  if (!img.spec.rollout?.waves?.some((w) => w.name === wave && w.requireApproval)) return `Wave ${wave} of ${name} needs no approval.`
  if (sources && reach.approveSources?.some((s) => !sources.includes(s))) return `Clusters of wave ${wave} get another source than was shown, as by a label: close this, and look at it again.`
  return undefined
}

const pausedBy = 'pelotech.ot/paused-by'
const pausedBecause = 'pelotech.ot/paused-because'
const maxPauseReason = 512

/** Pauses or resumes a rollout: a merge patch of the object as it was read. */
export function pausePatch(img: FleetDiskImage, paused: boolean, by: string, because: string): unknown {
  const annotations = paused
    ? { [pausedBy]: by.slice(0, maxPauseReason), ...(because.trim() ? { [pausedBecause]: because.trim().slice(0, maxPauseReason) } : {}) }
    : { [pausedBy]: null, [pausedBecause]: null }
  return { metadata: { resourceVersion: img.metadata?.resourceVersion, annotations }, spec: { rollout: { paused: paused ? true : null } } }
}

/** Starts the image over in clusters, or wherever it has failed: a merge patch of the object as it was read. */
export function retryPatch(img: FleetDiskImage, clusters: string[], now: number): unknown {
  // A request that the hub has not given to all plans yet is not lost by another one.
  const open = img.spec.retry && img.spec.retry.token !== img.status?.observedRetry ? img.spec.retry : undefined
  let of: string[] | null = clusters.length > 0 ? clusters : null
  if (of && open) of = open.clusters?.length ? [...new Set([...of, ...open.clusters])].sort() : null
  return { metadata: { resourceVersion: img.metadata?.resourceVersion }, spec: { retry: { token: new Date(now).toISOString(), clusters: of } } }
}

/** Reports whether an answer says that somebody else was faster: a conflict, or a test of a JSON patch that did not hold. */
export function isOutdated(status: number, message: string): boolean {
  return status === 409 || (status === 422 && message.includes('the server rejected our request due to an error in our request'))
}
