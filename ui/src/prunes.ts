// What is decided about PruneReports and ImagePrunes, in the words of `kubectl ot prune`.
import type { ImagePrune, ImagePrunePhase, KeptReason, PruneGroup, PruneGroups, PruneProgress, PruneReport, TargetCounts } from './api'
import { shellWord } from './shellword'
import type { Tone } from './components/sign'

/** How long an image has to be unreferenced, by the duration that the hub takes. */
export const ages = [
  { value: '', label: 'any age' },
  { value: '168h', label: '7 days' },
  { value: '720h', label: '30 days' },
  { value: '2160h', label: '90 days' },
  { value: '8760h', label: '1 year' },
]

export const undoWindows = [
  { value: '1h', label: '1 hour' },
  { value: '4h', label: '4 hours' },
  { value: '24h', label: '24 hours' },
  { value: '72h', label: '3 days' },
  { value: '168h', label: '7 days' },
]

export const defaultUndoWindow = '24h'

/** How long clusters are waited for beyond the undo window, as kubectl ot prune approve has it. */
const deadline = '1h'

/** What the reasons of kept images mean. */
export const keptMeanings: Record<KeptReason, string> = {
  Referenced: 'machines need them',
  Wanted: 'a plan or a FleetDiskImage asks for them',
  TooRecent: 'not unreferenced for long enough, or unknown since when',
  InTransition: 'not synced yet',
  Leaving: 'already being deleted or pruned',
}

/** The most names that an ImagePrune takes. */
export const maxNames = 1000

/** What a person has ticked, and how. */
export interface Selection {
  report: string
  digest: string
  /** Names of images as namespace/name; none: all candidates. */
  images: readonly string[]
  /** Names of clusters; none: all of the report. */
  clusters: readonly string[]
  includeOthers: boolean
  undoWindow: string
  name: string
}

/** Returns the ImagePrune that deletes exactly what is selected of the report that was reviewed. */
export function newImagePrune(s: Selection, approvedBy: string): ImagePrune {
  return {
    apiVersion: 'pelotech.ot/v1alpha1',
    kind: 'ImagePrune',
    metadata: { name: s.name },
    spec: {
      reportRef: { name: s.report, digest: s.digest },
      ...(s.images.length > 0 && { images: [...s.images] }),
      ...(s.clusters.length > 0 && { clusters: [...s.clusters] }),
      includeOthers: s.includeOthers,
      undoWindow: s.undoWindow,
      deadline,
      approvedBy,
      undo: false,
    },
  }
}

/** Returns the command that does the same. */
export function approveCommand(s: Selection): string {
  return [
    `kubectl ot prune approve ${shellWord(s.report)} --digest ${shellWord(s.digest)}`,
    ...selectionFlags(s),
    ...(s.undoWindow === defaultUndoWindow ? [] : [`--undo-window ${s.undoWindow}`]),
    ...(s.name === s.report ? [] : [`--name ${shellWord(s.name)}`]),
  ].join(' ')
}

/** Returns the command that shows the same groups. */
export function reviewCommand(s: Pick<Selection, 'report' | 'images' | 'clusters' | 'includeOthers'>, by: string): string {
  return [`kubectl ot prune review ${shellWord(s.report)}`, ...selectionFlags(s), ...(by === 'image' ? [] : [`--by ${by}`])].join(' ')
}

function selectionFlags(s: Pick<Selection, 'images' | 'clusters' | 'includeOthers'>): string[] {
  return [
    ...(s.images.length > 0 ? [`--images ${shellWord(s.images.join(','))}`] : []),
    ...(s.clusters.length > 0 ? [`--clusters ${shellWord(s.clusters.join(','))}`] : []),
    ...(s.includeOthers ? ['--include-others'] : []),
  ]
}

/** Returns the names to select: none where all candidates are ticked, since an ImagePrune without names selects all. */
export function namesToSelect(ticked: ReadonlySet<string>, shown: Pick<PruneGroups, 'groups' | 'groupsTotal' | 'tooRecent' | 'omitted'>): string[] {
  const isAll = shown.tooRecent.count === 0 && shown.omitted.count === 0 && shown.groups.length === shown.groupsTotal && shown.groups.every((g) => ticked.has(g.name))
  return isAll ? [] : [...ticked].sort()
}

/** Returns the name that kubectl ot prune report chooses at a time. */
export function reportName(at: Date): string {
  return 'report-' + at.toISOString().slice(0, 19).replaceAll(/[-:]/g, '').replace('T', '-')
}

/** Returns the name of a new ImagePrune: the report's, or the next that is free. */
export function freeName(report: string, taken: readonly string[]): string {
  let name = report
  for (let n = 2; taken.includes(name); n++) name = `${report}-${n}`
  return name
}

const namePattern = /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/

export function isObjectName(name: string): boolean {
  return namePattern.test(name)
}

/** Returns who could miss the images: no machine and no rollout does, else they were no candidates. */
export function whoMisses(g: Pick<PruneGroup, 'images' | 'others' | 'declaredBy'>): string {
  const others = g.others ?? 0
  if (others === g.images) return 'made by people'
  if (others > 0) return `${others} made by people`
  if (g.declaredBy) return `no machine; an old version of ${g.declaredBy}`
  return 'no machine, no rollout'
}

/** Why no images can be selected in a report; undefined if they can. */
export function whyNotApprovable(r: PruneReport): string | undefined {
  if (r.schedule && r.lastReport) return `It is a schedule: review its last report, ${r.lastReport}.`
  if (r.schedule) return 'It is a schedule without a report yet.'
  if (r.phase === 'Failed') return `It failed: ${r.message ?? r.reason ?? 'no reason is known'}`
  if (r.phase !== 'Complete') return `It is not complete: ${r.clusters.answered} of ${r.clusters.total} clusters have answered.`
  return undefined
}

const finalPhases: readonly (ImagePrunePhase | undefined)[] = ['Complete', 'Undone', 'Failed']

export function isFinal(p: Pick<PruneProgress, 'phase'>): boolean {
  return finalPhases.includes(p.phase)
}

export interface Segment {
  state: string
  count: number
  word: string
  tone: Tone
}

/** Returns how many images of an ImagePrune are in each state, those that there are. */
export function segmentsOf(t: TargetCounts): Segment[] {
  const all: Segment[] = [
    { state: 'Pruned', count: t.pruned, word: 'gone', tone: 'quiet' },
    { state: 'Pending', count: t.pending, word: 'serve on for the undo window', tone: 'moving' },
    { state: 'Waiting', count: t.waiting, word: 'not started', tone: 'waiting' },
    { state: 'Skipped', count: t.skipped, word: 'stay', tone: 'attention' },
    { state: 'Undone', count: t.undone, word: 'taken back', tone: 'good' },
    { state: 'Unknown', count: t.unknown, word: 'unknown', tone: 'unknown' },
  ]
  return all.filter((s) => s.count > 0)
}

/** Returns what goes when, in words; undefined where nothing goes any more. left is until the last undo window ends, in milliseconds; undefined where no cluster has started. Images that have not started have no window yet. */
export function nextDeletion(p: Pick<PruneProgress, 'phase' | 'undo' | 'targets'>, left: number | undefined): 'undoing' | 'starting' | 'counting' | 'deleting' | undefined {
  if (isFinal(p)) return undefined
  if (p.undo) return 'undoing'
  if (left === undefined || p.targets.pending === 0) return 'starting'
  return left > 0 ? 'counting' : 'deleting'
}
