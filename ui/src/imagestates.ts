// How an image is in clusters: the words and signs of its states.
import type { ImageState, ImageVersion, PlanItemReport, ReportedImage, VersionInCluster } from './api'
import { toneOf, type Tone } from './components/sign'
import { formatCount, formatNumber, plainText } from './format'
import { shellWord } from './shellword'

/** The states in the order in which they are drawn: what needs a person first. */
export const imageStates: readonly { state: ImageState; word: string; tone: Tone }[] = [
  { state: 'Failed', word: 'failed', tone: 'bad' },
  { state: 'Unknown', word: 'unknown', tone: 'unknown' },
  { state: 'Other', word: 'in another phase', tone: 'unknown' },
  { state: 'Importing', word: 'importing', tone: 'moving' },
  { state: 'Queued', word: 'queued', tone: 'waiting' },
  { state: 'Planned', word: 'to come', tone: 'waiting' },
  { state: 'Leaving', word: 'leaving', tone: 'moving' },
  { state: 'Ready', word: 'ready', tone: 'good' },
]

export function wordOfImage(state: ImageState): string {
  return imageStates.find((s) => s.state === state)?.word ?? 'not there'
}

export function toneOfImage(state: ImageState): Tone {
  return imageStates.find((s) => s.state === state)?.tone ?? 'quiet'
}

/** Returns what the agent did with a planned image that it has not created; undefined for one that it has. */
export function unappliedPlan(i: Pick<ReportedImage, 'phase' | 'plan'> | undefined): PlanItemReport | undefined {
  return !i?.phase && (i?.plan?.state === 'Waiting' || i?.plan?.state === 'Rejected') ? i.plan : undefined
}

/** Reports whether a cluster has an image that no agent has processed. */
function isUnprocessed(i: ReportedImage): boolean {
  return Boolean(i.uid) && !i.phase && !unappliedPlan(i)
}

/** Returns the commands about an image of a cluster; of one that no agent has processed, the one that shows whether its agent runs comes first. */
export function commandsOfImage(of: { cluster: string; namespace: string; name: string }, reported: ReportedImage | undefined): string[] {
  const flags = `${shellWord(of.name)} -n ${shellWord(of.namespace)} --cluster ${shellWord(of.cluster)}`
  const commands = [`kubectl ot why image ${flags}`, `kubectl ot tree image ${flags}`]
  return reported && isUnprocessed(reported) ? [`kubectl ot doctor --cluster ${shellWord(of.cluster)}`, ...commands] : commands
}

/** An item has a reason while a person is waited for. */
function toneOfPlan(plan: PlanItemReport): Tone {
  return plan.state === 'Rejected' ? 'bad' : plan.reason ? 'attention' : 'waiting'
}

/** Says how a version is in a cluster. */
export function stateInCluster(v: VersionInCluster): { word: string; tone: Tone } {
  const plan = v.state === 'Planned' ? unappliedPlan(v.reported) : undefined
  const word = v.state === 'Failed' ? (v.reported?.reason ?? 'failed') : plan?.state === 'Rejected' ? 'rejected' : [wordOfImage(v.state), plan?.reason].filter(Boolean).join(', ')
  return { word: plainText(word, 60), tone: plan ? toneOfPlan(plan) : toneOfImage(v.state) }
}

/** Says how an image is that a cluster reports. What is as it should be is quiet, so that the rest is seen. */
export function stateOfReported(i: ReportedImage): { word: string; tone: Tone; reason?: string; message?: string } {
  const plan = unappliedPlan(i)
  if (plan) return { word: plan.state === 'Rejected' ? 'Rejected' : 'Planned', tone: toneOfPlan(plan), reason: plan.reason, message: plan.message }
  if (i.phase === 'Succeeded') return { word: i.phase, tone: i.stalled ? 'attention' : 'quiet', message: i.message }
  const word = i.phase ?? (isUnprocessed(i) ? 'new' : 'Unknown')
  return { word, tone: i.stalled ? 'attention' : toneOf(word), reason: i.reason, message: i.message }
}

/** Returns the states that clusters are in with a version, and how many; those without it are left out. */
export function countsOf(version: Pick<ImageVersion, 'states'>): { state: ImageState; word: string; tone: Tone; n: number }[] {
  return imageStates.map((s) => ({ ...s, n: version.states[s.state] ?? 0 })).filter((s) => s.n > 0)
}

export interface Fate {
  tone: Tone
  text: string
}

/** Says whether a version can go, and when. */
export function fateOf(v: ImageVersion, keepVersions: number, keepUnreferencedFor: string | undefined): Fate {
  const { Ready = 0, Failed = 0, Importing = 0, Queued = 0, Other = 0, Leaving = 0 } = v.states
  const staying = Ready + Failed + Importing + Queued + Other
  if (v.current) return { tone: 'quiet', text: 'stays: it is the current version' }
  if (staying + Leaving === 0) return { tone: 'quiet', text: 'no cluster is known to have it' }
  if (staying === 0) return { tone: 'quiet', text: `is leaving ${formatCount(Leaving, 'cluster')}${v.referenced > 0 ? `: machines still need it in ${formatNumber(v.referenced)}` : ''}` }
  if (v.kept) return { tone: 'quiet', text: `stays: the newest ${keepVersions} versions are kept` }
  if (v.unreferenced === 0) return { tone: 'quiet', text: v.referenced > 0 ? `stays: machines need it in ${formatCount(v.referenced, 'cluster')}` : 'no cluster is known to have it ready' }
  if (keepUnreferencedFor) return { tone: 'attention', text: `goes where no machine has needed it for ${keepUnreferencedFor}` }
  return { tone: 'attention', text: `can go from ${formatCount(v.unreferenced, 'cluster')}, by a prune` }
}
